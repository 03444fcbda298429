"""Towers, attention, adapters, losses and export against the original model and hand numbers."""

import json

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ease_flower.config import Config
from ease_flower.data.scenes import scene_pairs
from ease_flower.errors import StateError, UserError
from ease_flower.model import tiny
from ease_flower.model.adapters import add_adapters, flat_theta, get_adapters, set_adapters
from ease_flower.model.attention import SplitAttention
from ease_flower.model.backbones import backbone_problem, from_open_clip, load_architecture
from ease_flower.model.caching import compute_stems, embed_all
from ease_flower.model.export import export_adapter, import_adapter
from ease_flower.model.losses import bilateral_excision, forget_lock, info_nce, proximal_lock
from ease_flower.model.training import train_locally
from ease_flower.seeding import numpy_generator

CONFIG = Config(lora_rank=4, adapted_blocks=2, local_epochs=1, batch_size=8)


def encoder_with_adapters(config=CONFIG, noise=0.0):
    encoder = load_architecture("tiny", config.adapted_blocks)
    space = add_adapters(encoder, config)
    rng = np.random.default_rng(0)
    theta = (noise * rng.standard_normal(space.size)).astype(np.float32)
    if noise:
        set_adapters(encoder, space.unflatten(theta))
    return encoder, space


@pytest.mark.parametrize("batch_first", [True, False])
def test_split_attention_equals_the_fused_module(batch_first):
    fused = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = torch.randn(3, 5, 16)
    mask = torch.full((5, 5), float("-inf")).triu(1)
    if not batch_first:
        x = x.transpose(0, 1)
    want, _ = fused(x, x, x, need_weights=False, attn_mask=mask)
    got, _ = SplitAttention(fused)(x, x, x, attn_mask=mask)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_adapted", [1, 3])
def test_head_after_stem_equals_the_original_open_clip_model(num_adapted):
    pairs = scene_pairs(4, 0)
    pixels = torch.stack([tiny.preprocess(pairs.image(i)) for i in range(4)])
    tokens = tiny.tokenize([c[0] for c in pairs.captions])
    original = tiny.new_model().eval()
    with torch.no_grad():
        want = original.encode_image(pixels, normalize=True), original.encode_text(tokens, True)
        cut = from_open_clip(tiny.new_model(), "x", num_adapted, tiny.preprocess, tiny.tokenize)
        got = cut(pixels, tokens)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_cached_and_trimmed_embeddings_equal_whole_ones():
    encoder, _ = encoder_with_adapters(noise=0.05)
    pairs = scene_pairs(5, 1)
    image, text = embed_all(encoder, compute_stems(encoder, pairs))
    pixels = torch.stack([tiny.preprocess(pairs.image(i)) for i in range(5)])
    tokens = tiny.tokenize([c for captions in pairs.captions for c in captions])
    with torch.no_grad():
        _, whole_text = encoder(pixels[:1].repeat(len(tokens), 1, 1, 1), tokens)
        whole_image, _ = encoder(pixels, tokens[:5])
    torch.testing.assert_close(image, whole_image, atol=3e-3, rtol=0)  # stems are kept as halves
    torch.testing.assert_close(text, whole_text, atol=3e-3, rtol=0)


def test_an_adapter_changes_a_linear_by_b_times_a_scaled():
    encoder, _ = encoder_with_adapters(noise=0.1)
    layer = next(m for m in encoder.modules() if hasattr(m, "lora_A"))
    x = torch.randn(3, layer.base_layer.in_features)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    weight = layer.base_layer.weight + CONFIG.lora_alpha / CONFIG.lora_rank * b @ a
    want = x @ weight.T + (0 if layer.base_layer.bias is None else layer.base_layer.bias)
    torch.testing.assert_close(layer(x), want, atol=1e-4, rtol=1e-4)


def test_adapters_start_as_the_frozen_model_and_alike_everywhere():
    first, space = encoder_with_adapters()
    second, _ = encoder_with_adapters()
    assert not flat_theta(first).any()  # B = 0
    for (n, p), (_, q) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(p, q), n
    assert all(name.endswith("lora_B") for name in space.names)
    both, wide = encoder_with_adapters(Config(lora_rank=4, lora_train="AB"))
    assert {name.rsplit(".", 1)[1] for name in wide.names} == {"lora_A", "lora_B"}
    assert flat_theta(both).any()


def test_blocks_of_every_granularity_cover_theta_without_overlap():
    _, space = encoder_with_adapters()
    for granularity, count in (("all", 1), ("tower", 2), ("layer", 4)):
        blocks = space.blocks(granularity)
        assert len(blocks) == count
        covered = np.concatenate([np.arange(b.start, b.stop) for b in blocks.values()])
        assert np.array_equal(covered, np.arange(space.size))


def test_flatten_refuses_another_shape_by_name():
    _, space = encoder_with_adapters()
    arrays = space.unflatten(np.zeros(space.size, np.float32))
    arrays[1] = arrays[1].T
    with pytest.raises(ValueError, match="lora_B: shape"):
        space.flatten(arrays)


def test_info_nce_by_hand():
    z = torch.eye(2)
    want = np.log(1 + np.exp(-3.0))
    assert info_nce(z, z, torch.tensor([0, 1]), 3.0).item() == pytest.approx(want, rel=1e-6)


def test_captions_of_one_image_are_not_each_others_negatives():
    """A third pair of image 0 must not push image 0's other captions away."""
    z_v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    z_t = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], requires_grad=True)
    info_nce(z_v, z_t, torch.tensor([0, 0, 1]), 5.0).backward()
    assert z_t.grad is not None
    assert z_t.grad[1] @ z_v[0] < 0  # descent moves the other caption towards its image


def test_bilateral_excision_moves_both_branches_and_stops_at_unseen():
    z_v = torch.nn.functional.normalize(torch.randn(4, 8), dim=1).requires_grad_()
    z_t = torch.nn.functional.normalize(torch.randn(4, 8), dim=1).requires_grad_()
    start = z_v.detach().clone(), z_t.detach().clone()
    loss = bilateral_excision(z_v, z_t, *start, unseen=2.0, pair_weight=1.0)
    assert loss.item() == pytest.approx(1.0)  # nothing moved yet; no pair is above 2
    loss.backward()
    assert z_v.grad is not None and z_v.grad.any()
    assert z_t.grad is not None and z_t.grad.any()


def test_the_lock_acts_along_its_basis_alone():
    basis = torch.linalg.qr(torch.randn(10, 3)).Q
    theta, anchor = torch.randn(10).requires_grad_(), torch.randn(10)
    forget_lock(theta, anchor, basis, 2.0).backward()
    assert theta.grad is not None
    want = 2.0 * basis @ (basis.T @ (theta.detach() - anchor))
    torch.testing.assert_close(theta.grad, want)
    moved = proximal_lock(theta.detach(), anchor, basis, alpha=9.0, step=1.0)
    inside, outside = basis.T @ (moved - anchor), moved - basis @ (basis.T @ moved)
    torch.testing.assert_close(inside, 0.1 * basis.T @ (theta.detach() - anchor))
    torch.testing.assert_close(outside, theta.detach() - basis @ (basis.T @ theta.detach()))


def test_training_with_one_seed_gives_the_same_bytes():
    results = []
    for _ in range(2):
        encoder, _ = encoder_with_adapters()
        stems = compute_stems(encoder, scene_pairs(16, 3))
        train_locally(encoder, stems, CONFIG, numpy_generator(0, "fit"))
        results.append(np.concatenate([a.ravel() for a in get_adapters(encoder)]))
    assert results[0].any()
    assert results[0].tobytes() == results[1].tobytes()


def test_an_exported_adapter_is_loaded_by_peft_and_by_us(tmp_path):
    from peft import PeftModel

    encoder, space = encoder_with_adapters()
    arrays = space.unflatten(np.random.default_rng(1).normal(0, 0.1, space.size))
    export_adapter(tmp_path, encoder, CONFIG, arrays)
    fresh, _ = encoder_with_adapters()
    for a, b in zip(import_adapter(tmp_path, fresh), arrays, strict=True):
        assert a.tobytes() == b.tobytes()
    bare = load_architecture("tiny", CONFIG.adapted_blocks)
    theirs = PeftModel.from_pretrained(bare, str(tmp_path))
    pairs = scene_pairs(3, 5)
    pixels = torch.stack([tiny.preprocess(pairs.image(i)) for i in range(3)])
    tokens = tiny.tokenize([c[0] for c in pairs.captions])
    with torch.no_grad():
        for a, b in zip(theirs(pixels, tokens), encoder(pixels, tokens), strict=True):
            torch.testing.assert_close(a, b)


def test_import_refuses_other_weights_and_left_over_tensors(tmp_path):
    encoder, _space = encoder_with_adapters()
    export_adapter(tmp_path, encoder, CONFIG, get_adapters(encoder))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    save_file({**tensors, "extra": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(StateError, match="extra"):
        import_adapter(tmp_path, encoder)
    base = json.loads((tmp_path / "base.json").read_text())
    (tmp_path / "base.json").write_text(json.dumps(base | {"digest": "0" * 16}))
    with pytest.raises(StateError, match="made for tiny 0000"):
        import_adapter(tmp_path, encoder)


def test_a_backbone_that_cannot_be_built_is_named():
    assert "did you mean" in str(backbone_problem("ViT-B-3:openai")) or "open_clip" in str(
        backbone_problem("ViT-B-3:openai")
    )
    assert "safetensors" in str(backbone_problem("ViT-B-32:weights.pt"))
    with pytest.raises(UserError, match="no transformer"):
        load_architecture("RN50:openai", 1)


def test_an_open_clip_vit_is_cut_exactly():
    name = "ViT-S-32-alt" if "ViT-S-32-alt" in open_clip.list_models() else "ViT-S-32"
    torch.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    model.eval()
    tokens = open_clip.get_tokenizer(name)(["a dog", "two birds on a wire"])
    pixels = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        want = model.encode_image(pixels, True), model.encode_text(tokens, True)
        cut = from_open_clip(model, name, 1, preprocess, open_clip.get_tokenizer(name))
        for a, b in zip(cut(pixels, tokens), want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
