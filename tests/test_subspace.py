"""GSD against scipy's angles, dense projectors and hand-made cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

from ease_flower.errors import NotFinite
from ease_flower.unlearning import subspace
from ease_flower.unlearning.packing import pack_directions, unpack_directions
from ease_flower.unlearning.subspace import (
    Subspaces,
    collateral,
    decompose,
    energy_coefficients,
    orthonormalise,
    remove,
    retain_component,
)


def split(forget: np.ndarray, *retained: np.ndarray, energy: float = 1.0) -> Subspaces:
    stacked = np.concatenate(retained)
    return decompose(
        lambda part: forget[:, part],
        lambda part: stacked[:, part],
        (len(forget), [len(r) for r in retained]),
        forget.shape[1],
        energy,
    )


def projector(columns: np.ndarray) -> np.ndarray:
    q, _ = np.linalg.qr(columns)
    return q @ q.T


def test_angles_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    forget, a, b = (rng.normal(size=(n, 40)) for n in (4, 3, 5))

    found = split(forget, a, b)

    expected = np.sort(subspace_angles(forget.T, np.concatenate([a, b]).T))
    np.testing.assert_allclose(found.angles, expected, atol=1e-10)
    np.testing.assert_allclose(found.cosines, np.cos(expected), atol=1e-10)


def test_a_small_angle_is_exact_where_arccos_would_say_zero() -> None:
    angle = 1e-8
    forget = np.array([[np.cos(angle), np.sin(angle), 0.0], [0.0, 0.0, 1.0]])
    retained = np.array([[1.0, 0.0, 0.0]])

    found = split(forget, retained)

    np.testing.assert_allclose(found.angles, [angle, np.pi / 2], rtol=1e-6)
    assert np.arccos(np.cos(angle)) == 0.0


def test_equal_spans_have_angle_zero_and_nothing_is_unique() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(3, 20))

    found = split(updates, updates[::-1] * 2)

    np.testing.assert_allclose(found.angles, 0, atol=1e-7)
    assert not found.unique(0.5).any()


def test_shared_directions_of_scipy_issue_9020() -> None:
    e = np.eye(6)

    found = split(e[[0, 1, 2]], e[[0, 1, 4]])

    np.testing.assert_allclose(found.angles, [0, 0, np.pi / 2], atol=1e-12)


def test_rank_deficient_updates_of_scipy_issue_21962_get_their_true_angles() -> None:
    a = np.array([[3.0, 2, 1], [6, 5, 4], [9, 8, 7]])  # rank 2
    b = np.array([[2.0, 4], [4, 1], [6, 2]])
    basis_a = np.linalg.svd(a)[0][:, :2]

    found = split(a.T, b.T)

    expected = np.sort(subspace_angles(basis_a, b))
    assert found.directions.shape == (3, 2)
    np.testing.assert_allclose(found.angles, expected, atol=1e-7)


def test_surplus_forget_directions_have_cosine_zero() -> None:
    e = np.eye(5)

    found = split(e[[0, 1, 2]], e[[0]])

    np.testing.assert_allclose(found.cosines, [1, 0, 0], atol=1e-12)


def test_a_direction_far_from_each_client_can_lie_in_their_joint_span() -> None:
    e = np.eye(4)
    forget = (e[[0]] + e[[1]] + e[[2]]) / np.sqrt(3)

    found = split(forget, e[[0]], e[[1]], e[[2]])

    assert found.cosines[0] == pytest.approx(1.0)
    assert found.pairwise[0] == pytest.approx(1 / np.sqrt(3))
    assert not found.unique(0.6, "joint").any()
    assert found.unique(0.6, "pairwise").all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), delta=st.sampled_from([0.2, 0.5, 0.8]))
def test_removal_costs_a_retained_vector_at_most_delta(seed: int, delta: float) -> None:
    rng = np.random.default_rng(seed)
    retained = rng.normal(size=(6, 24))
    forget = rng.normal(size=(5, 24)) + rng.normal(size=(5, 6)) @ retained * 0.3
    found = split(forget, retained[:3], retained[3:])
    basis = found.directions[:, found.unique(delta)]

    for x in rng.normal(size=(20, 6)) @ retained:
        assert np.linalg.norm(basis.T @ x) <= delta * np.linalg.norm(x) * (1 + 1e-9)


def test_principal_directions_are_orthonormal_and_span_the_updates() -> None:
    rng = np.random.default_rng(2)
    forget, retained = rng.normal(size=(4, 30)), rng.normal(size=(6, 30))

    p = split(forget, retained).directions

    np.testing.assert_allclose(p.T @ p, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(p @ p.T, projector(forget.T), atol=1e-10)


def test_the_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    forget, retained = rng.normal(size=(3, 50)), rng.normal(size=(4, 50))
    whole = split(forget, retained)

    monkeypatch.setattr(subspace, "BLOCK_ENTRIES", 7 * 8)  # blocks of 8 columns
    pieces = split(forget, retained)

    np.testing.assert_allclose(pieces.angles, whole.angles, atol=1e-12)
    np.testing.assert_allclose(np.abs(pieces.directions), np.abs(whole.directions), atol=1e-10)


def test_retain_component_is_the_dense_projection() -> None:
    rng = np.random.default_rng(4)
    forget, retained = rng.normal(size=(2, 15)), rng.normal(size=(5, 15))
    found = split(forget, retained[:2], retained[2:])
    x = rng.normal(size=(15, 3))

    np.testing.assert_allclose(retain_component(found, x), projector(retained.T) @ x, atol=1e-10)


def test_rank_by_energy_keeps_what_it_says() -> None:
    m = np.diag([10.0, 3.0, 1.0])  # squared norms 100, 9, 1 of 110

    ranks = [energy_coefficients(m @ m.T, e, 9).shape[1] for e in (0.9, 0.95, 0.99, 1.0)]

    assert ranks == [1, 2, 2, 3]
    assert energy_coefficients(m @ m.T, 1.0, 2).shape[1] == 2


def test_updates_of_zero_have_no_span() -> None:
    found = split(np.zeros((2, 5)), np.eye(5)[:2])

    assert found.directions.shape == (5, 0)
    assert found.unique(0.5).shape == (0,)


def test_nan_in_the_history_is_named_before_any_decomposition() -> None:
    forget = np.eye(4)[:2]
    forget[0, 3] = np.nan

    with pytest.raises(NotFinite, match="history"):
        split(forget, np.eye(4)[2:])


def test_removal_is_idempotent_at_full_strength_and_spares_the_complement() -> None:
    rng = np.random.default_rng(5)
    basis = orthonormalise(rng.normal(size=(12, 3)))
    theta, origin = rng.normal(size=12), rng.normal(size=12)

    once = remove(theta, origin, basis)

    np.testing.assert_allclose(remove(once, origin, basis), once, atol=1e-12)
    np.testing.assert_allclose(basis.T @ (once - origin), 0, atol=1e-12)
    complement = np.eye(12) - basis @ basis.T
    np.testing.assert_allclose(complement @ once, complement @ theta, atol=1e-12)


def test_orthonormalise_drops_dependent_columns() -> None:
    e = np.eye(4)
    columns = np.stack([e[0], e[1], e[0] + e[1]], axis=1)

    basis = orthonormalise(columns)

    assert basis.shape == (4, 2)
    np.testing.assert_allclose(basis @ basis.T, np.diag([1, 1, 0, 0]), atol=1e-12)


def test_packed_directions_take_half_a_byte_an_entry_and_keep_their_course() -> None:
    rng = np.random.default_rng(0)
    uneven = rng.normal(size=(3001, 5)) * np.repeat([0.1, 1, 3], [1001, 1000, 1000])[:, None]
    basis = np.linalg.qr(uneven)[0]
    packed, steps = pack_directions(basis)
    assert packed.nbytes == 5 * 1501
    back = unpack_directions(packed, steps, 3001)
    np.testing.assert_allclose(back.T @ back, np.eye(5), atol=1e-12)
    assert np.diag(basis.T @ back).min() > 0.98


def test_packing_nothing_gives_nothing() -> None:
    assert unpack_directions(*pack_directions(np.zeros((7, 0))), 7).shape == (7, 0)


def test_collateral_is_the_largest_share_of_a_retained_update_and_within_its_bound() -> None:
    rng = np.random.default_rng(3)
    shared = rng.normal(size=(2, 60))
    forget = rng.normal(size=(4, 2)) @ shared + rng.normal(size=(4, 60))
    retained = rng.normal(size=(5, 2)) @ shared + rng.normal(size=(5, 60))
    found = split(forget, retained)
    cost = collateral(found)
    for i, cosine in enumerate(found.cosines):
        basis = found.directions[:, found.cosines <= cosine]
        shares = [np.linalg.norm(basis.T @ x) / np.linalg.norm(x) for x in retained]
        np.testing.assert_allclose(cost[i], max(shares), atol=1e-12)
        assert cost[i] <= cosine + 1e-9
