"""The log: whatever a coordinator hides, reorders or replaces, a proof no longer verifies."""

from __future__ import annotations

import hashlib

import pytest
from stage.both_sides.log import root

from shared.base.merkle.tree import (
    MerkleTree,
    append,
    leaf_hash,
    node_hash,
    peaks_root,
    verify_consistency,
    verify_inclusion,
)
from shared.errors import ParameterError

# Test vectors of the Certificate Transparency reference implementation (merkletree/merkle_tree_test.cc).
ENTRIES = [bytes.fromhex(text) for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
ENTRIES.append(bytes.fromhex("606162636465666768696a6b6c6d6e6f"))
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
LEAVES = [leaf_hash(entry) for entry in ENTRIES]


def inclusion_proof(leaves, index):
    return MerkleTree(leaves).inclusion(index, len(leaves))


def consistency_proof(leaves, size):
    return MerkleTree(leaves).growth(size, len(leaves))


def split(leaves):
    return 1 << (len(leaves) - 1).bit_length() - 1


def path(leaves, index):
    """PATH of RFC 6962, word for word."""
    if len(leaves) == 1:
        return ()
    k = split(leaves)
    if index < k:
        return (*path(leaves[:k], index), root(leaves[k:]))
    return (*path(leaves[k:], index - k), root(leaves[:k]))


def subproof(leaves, size, whole=True):
    """SUBPROOF of RFC 6962, word for word."""
    if size == len(leaves):
        return () if whole else (root(leaves),)
    k = split(leaves)
    if size <= k:
        return (*subproof(leaves[:k], size, whole), root(leaves[k:]))
    return (*subproof(leaves[k:], size - k, False), root(leaves[:k]))


def test_proofs_from_kept_nodes_are_those_of_the_standard_at_every_size():
    tree = MerkleTree()
    leaves = []
    for count in range(1, 41):
        leaves.append(leaf_hash(bytes([count])))
        tree.append(leaves[-1])
    for size in range(1, 41):
        assert tree.root(size) == root(leaves[:size])
        for place in range(size):
            assert tree.inclusion(place, size) == path(leaves[:size], place)
            assert tree.growth(place + 1, size) == subproof(leaves[:size], place + 1)
    assert tree.leaves() == leaves


def test_a_proof_hashes_no_more_than_the_right_edge_of_the_log(monkeypatch):
    tree = MerkleTree([leaf_hash(b"%d" % k) for k in range(5000)])
    hashed = []
    monkeypatch.setattr(
        "shared.base.merkle.tree.node_hash", lambda left, right: hashed.append(1) or node_hash(left, right)
    )
    proof = tree.growth(1234, 5000)
    assert verify_consistency(1234, 5000, proof, tree.root(1234), tree.root(5000))
    assert len(hashed) < 60, "a proof over all leaves would hash 5,000 times"


@pytest.mark.parametrize("size", ROOTS)
def test_roots_are_those_of_certificate_transparency(size):
    assert root(LEAVES[:size]).hex() == ROOTS[size]


def test_a_leaf_can_never_pass_for_a_node():
    inside = LEAVES[0] + LEAVES[1]
    assert leaf_hash(inside) != hashlib.sha256(b"\x01" + inside).digest() == root(LEAVES[:2])


@pytest.mark.fault("I8")
@pytest.mark.parametrize("size", range(1, 20))
def test_every_entry_is_proven_and_no_other_place_size_or_leaf(size):
    leaves = [leaf_hash(bytes([i])) for i in range(size)]
    whole = root(leaves)
    for index in range(size):
        proof = inclusion_proof(leaves, index)
        assert verify_inclusion(leaves[index], index, size, proof, whole)
        for wrong in set(range(size + 1)) - {index}:
            assert not verify_inclusion(leaves[index], wrong, size, proof, whole)
        assert not verify_inclusion(leaf_hash(b"other"), index, size, proof, whole)
        assert not verify_inclusion(leaves[index], index, size, (*proof, whole), whole)
        assert not verify_inclusion(leaves[index], index, size, proof, leaf_hash(b"other"))
        for place in range(len(proof)):
            flipped = [*proof[:place], leaf_hash(b"flip"), *proof[place + 1 :]]
            assert not verify_inclusion(leaves[index], index, size, flipped, whole)


@pytest.mark.fault("I8")
@pytest.mark.parametrize("size", range(1, 20))
def test_growth_is_proven_and_a_changed_past_is_found(size):
    leaves = [leaf_hash(bytes([i])) for i in range(size)]
    whole = root(leaves)
    for old in range(1, size + 1):
        proof = consistency_proof(leaves, old)
        assert verify_consistency(old, size, proof, root(leaves[:old]), whole)
        for place in range(old):
            rewritten = [*leaves[:place], leaf_hash(b"other"), *leaves[place + 1 :]]
            forged = consistency_proof(rewritten, old)
            assert not verify_consistency(old, size, forged, root(leaves[:old]), root(rewritten))
        if old < size:
            assert not verify_consistency(old, size, (), leaf_hash(b"other"), whole)
            assert not verify_consistency(old, size, (*proof, whole), root(leaves[:old]), whole)
            assert not verify_consistency(old, size, consistency_proof(leaves[:-1], old), root(leaves[:old]), whole)


def test_appending_needs_only_the_peaks():
    peaks: tuple[bytes, ...] = ()
    for size in range(70):
        leaf = leaf_hash(bytes([size]))
        peaks = append(peaks, size, leaf)
        assert len(peaks) == (size + 1).bit_count()
        assert peaks_root(peaks) == root([leaf_hash(bytes([i])) for i in range(size + 1)])
    with pytest.raises(ParameterError):
        append(peaks, 71, leaf)


def test_there_is_no_proof_of_what_is_not_there():
    with pytest.raises(ParameterError):
        inclusion_proof(LEAVES, 8)
    for size in (0, 9):
        with pytest.raises(ParameterError):
            consistency_proof(LEAVES, size)
    assert not verify_consistency(0, 8, (), root([]), root(LEAVES))
    assert not verify_inclusion(LEAVES[0], 0, 0, (), root([]))
