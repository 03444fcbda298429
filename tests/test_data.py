"""Pairs, partitions, Karpathy files and drawn scenes: what a client may rely on."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ease_flower.config import Config
from ease_flower.data import Pairs
from ease_flower.data.captions import check_images, load_karpathy, mentions
from ease_flower.data.federation import client_data, node_data
from ease_flower.data.partition import partition, split_holdout
from ease_flower.data.scenes import SHAPES, describe_scenes, scene_pairs
from ease_flower.data.tokens import WordTokenizer
from ease_flower.errors import DataError

CAPTION = [{"raw": "a red door"}]


def karpathy(folder, entries, captions=CAPTION):
    """Write images (8 x 8) and their JSON; return the JSON's path."""
    folder.mkdir(exist_ok=True)
    for entry in entries:
        path = folder / entry.get("filepath", "") / entry["filename"]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (9, 9, 9)).save(path)
    listed = [{"sentences": captions, "split": "train"} | e for e in entries]
    (folder / "data.json").write_text(json.dumps({"images": listed}))
    return folder / "data.json"


@settings(deadline=None, max_examples=40)
@given(
    how=st.sampled_from(["iid", "dirichlet", "class"]),
    seed=st.integers(0, 2**32 - 1),
    num=st.integers(1, 6),
    alpha=st.floats(0.01, 100),
)
def test_shares_are_disjoint_and_of_equal_size(how, seed, num, alpha):
    labels = [SHAPES[i % 5] for i in range(50)]
    shares = partition(labels, num, 8, seed, how, alpha)
    assert [len(share) for share in shares] == [8] * num
    assert len({int(i) for share in shares for i in share}) == 8 * num
    again = partition(labels, num, 8, seed, how, alpha)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


def test_a_small_dirichlet_alpha_gives_a_client_fewer_classes():
    labels = [SHAPES[i % 8] for i in range(2000)]

    def classes(alpha):
        shares = partition(labels, 5, 100, 0, "dirichlet", alpha)
        return np.mean([len({labels[i] for i in share}) for share in shares])

    assert classes(0.05) < classes(100.0) == 8


def test_the_class_partition_sorts_by_class():
    labels = ["b", "a"] * 10
    first, second = partition(labels, 2, 10, 0, "class")
    assert {labels[i] for i in first} == {"a"}
    assert {labels[i] for i in second} == {"b"}


def test_a_holdout_is_never_trained_on():
    train, holdout = split_holdout(list(range(10)), 3, seed=1)
    assert len(holdout) == 3
    assert sorted([*train, *holdout]) == list(range(10))
    with pytest.raises(DataError, match="at least 2 must be left"):
        split_holdout([1, 2, 3], 2, seed=1)


def test_clients_and_the_public_share_no_scene():
    config = Config(num_clients=3, pairs_per_client=6, holdout_per_client=3, gallery=9)
    seen = [client_data(config, i, 3) for i in range(3)]
    ids = [name for d in seen for part in (d.train, d.holdout) for name in part.ids]
    assert len(set(ids)) == len(ids) == 27
    assert not set(ids) & set(seen[0].distractors.ids)


def test_restval_counts_as_train_and_filepath_is_looked_in(tmp_path):
    entries = [
        {"filename": "1.png", "filepath": "val2014", "split": "restval"},
        {"filename": "2.png"},
        {"filename": "3.png", "split": "test"},
    ]
    pairs = load_karpathy(karpathy(tmp_path / "d", entries), tmp_path / "d", "train")
    assert len(pairs) == 2
    assert pairs.image(0).size == (8, 8)
    assert check_images(pairs) == []


def test_a_file_named_in_another_unicode_form_is_found(tmp_path):
    composed = unicodedata.normalize("NFC", "caf\u00e9.png")
    path = karpathy(tmp_path / "d", [{"filename": composed}])
    decomposed = unicodedata.normalize("NFD", composed)
    path.write_text(
        json.dumps(
            {"images": [{"filename": decomposed, "split": "train", "sentences": CAPTION}]},
            ensure_ascii=False,
        )
    )
    assert load_karpathy(path, tmp_path / "d").image(0).size == (8, 8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "needs a list 'images'"),
        ('{"images": [{}]}', "has no 'filename'"),
        ('{"images": [{"filename": "1.png", "split": "val"}]}', r"splits: val \(1\)"),
        (
            '{"images": [{"filename": "1.png", "split": "train", "sentences": [{"raw": " "}]}]}',
            "a blank one",
        ),
    ],
)
def test_a_broken_caption_file_says_what_is_wrong(tmp_path, content, said):
    path = tmp_path / "data.json"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        load_karpathy(path, tmp_path)


def test_an_image_listed_twice_is_refused(tmp_path):
    path = karpathy(tmp_path / "d", [{"filename": "1.png"}, {"filename": "1.png"}])
    with pytest.raises(DataError, match="occurs 2 times"):
        load_karpathy(path, tmp_path / "d")


def test_a_truncated_image_is_an_error_that_names_it(tmp_path):
    path = karpathy(tmp_path / "d", [{"filename": "1.png"}])
    image = tmp_path / "d" / "1.png"
    image.write_bytes(image.read_bytes()[:40])
    with pytest.raises(DataError, match=r"1\.png"):
        load_karpathy(path, tmp_path / "d").image(0)


def test_a_deployed_node_reads_its_own_folder_and_nothing_else(tmp_path):
    entries = [{"filename": f"{i}.png"} for i in range(9)]
    entries += [{"filename": "t.png", "split": "test"}]
    karpathy(tmp_path / "d", entries)
    data = node_data(Config(holdout_per_client=60), tmp_path / "d")
    assert (len(data.train), len(data.holdout), len(data.distractors)) == (6, 3, 1)


def test_pairs_refuse_a_repeated_id_and_an_image_without_caption():
    def blank(i: int) -> Image.Image:
        raise AssertionError(i)

    with pytest.raises(DataError, match="occurs twice"):
        Pairs(("a", "a"), (("x",), ("y",)), ("", ""), blank)
    with pytest.raises(DataError, match="no caption"):
        Pairs(("a",), ((),), ("",), blank)


def test_a_scene_depends_on_its_seed_and_number_alone():
    many, one = scene_pairs(6, seed=3), scene_pairs(1, seed=3, first=5)
    assert many.captions[5] == one.captions[0]
    assert many.image(5).tobytes() == one.image(0).tobytes()
    assert many.captions != scene_pairs(6, seed=4).captions


def test_captions_say_what_is_drawn_and_near_duplicates_are_asked_for():
    scenes = describe_scenes(200, seed=0)
    pairs = scene_pairs(200, seed=0)
    for scene, captions, label in zip(scenes, pairs.captions, pairs.labels, strict=True):
        assert len(captions) == 5
        assert all(scene.first.shape in caption for caption in captions)
        assert label == scene.first.shape
    twins = scene_pairs(200, seed=0, near_duplicates=0.5)
    assert len(set(twins.captions)) < 150 < len(set(pairs.captions))


def test_the_public_palette_holds_nothing_private():
    text = " ".join(c for captions in scene_pairs(300, 0, "public").captions for c in captions)
    assert not {"star", "ring", "purple", "pink"} & set(text.split())


def test_a_word_counts_as_class_from_three_captions_on():
    captions = ["a dog", "Dogs run", "the dog.", "an animal"]
    assert not mentions(captions, "dog")
    assert mentions([*captions, "dog"], "dog")


def test_unknown_words_and_long_captions_have_a_place():
    tokenizer = WordTokenizer(("a", "dog"), 6)
    ids = tokenizer(["a dog", "a zebra", "a dog a dog a dog a dog"])
    assert ids.shape == (3, 6)
    assert ids[0, 1] == ids[1, 1]
    assert ids[0, 2] != ids[1, 2]
    assert ids[2, -1] == ids[0].max()


def test_re_paired_captions_are_the_clients_own_and_no_image_keeps_its_caption():
    pairs = scene_pairs(20, seed=0)
    mixed = pairs.re_paired(seed=1)
    assert sorted(mixed.captions) == sorted(pairs.captions)
    assert mixed.ids == pairs.ids
    assert not any(a == b for a, b in zip(mixed.captions, pairs.captions, strict=True))


def test_only_the_leaver_is_re_paired():
    plain = Config(num_clients=2, pairs_per_client=6, holdout_per_client=3)
    other = Config(num_clients=2, pairs_per_client=6, holdout_per_client=3, pairing="re-paired")
    for index, changed in ((0, False), (1, True)):  # site-1 is to be forgotten
        a, b = (client_data(c, index, 2).train.captions for c in (plain, other))
        assert (a != b) is changed
