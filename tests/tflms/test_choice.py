# SPDX-License-Identifier: Apache-2.0
"""What users ask for, and what is refused."""

from __future__ import annotations

import pytest
from tensorflow_large_model_support.choice import Side, parse_levels, serialized_levels
from tflms_graphs import chain


def test_levels_and_slices():
    graph = chain(5)  # levels 0 to 10
    assert serialized_levels(parse_levels("serialization", [1, "3:5", 7]), 0, graph) == {1, 3, 4, 7}
    assert serialized_levels(parse_levels("serialization", ["8:", -1, 99]), 0, graph) == {8, 9, 10}
    assert serialized_levels([], 1023 / (1 << 30), graph) == set(range(1, 11))
    assert serialized_levels([], 1024 / (1 << 30), graph) == set()


@pytest.mark.parametrize("wrong", ["3", "a:b", "1:2:3:4", "1:5:0", 1.5, True, None])
def test_what_is_no_level(wrong):
    with pytest.raises(ValueError, match="is no level; give levels and slices"):
        parse_levels("serialization", [wrong])


@pytest.mark.parametrize("option", ["excl", "incl"])
def test_scopes_and_types_that_the_graph_has_not(option):
    graph = chain(3)
    Side(**{f"{option}_scopes": {"forward", "backward/1"}, f"{option}_types": {"Conv2D"}}).check(
        graph, "{}_output_by_{}"
    )
    with pytest.raises(ValueError, match=f"{option}_input_by_scopes names 'forwar'"):
        Side(**{f"{option}_scopes": {"forwar"}}).check(graph, "{}_input_by_{}")
    with pytest.raises(ValueError, match=f"{option}_output_by_types names 'Conv3D'"):
        Side(**{f"{option}_types": {"Conv3D"}}).check(graph, "{}_output_by_{}")
