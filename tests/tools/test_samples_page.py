"""The reference page of samples.

1. It names every field, status, reason and metadata key; no sample carries a key that it does not name.
2. The file is what the tables render (checked with the other reference pages).
"""

import pytest

from samples.builders import LINEAR, TREE, Story, spell
from tools.samples import METADATA, OWN_METADATA, SESSION_METADATA, render_samples
from turnkeeper.core import DropReason, FinishReason, MaskReason
from turnkeeper.samples import CollectOptions, EmptyReason, SampleStatus, collect, load_hooks, view_session
from turnkeeper.samples.wire import list_fields

PAGE = render_samples()


def test_every_field_is_on_the_page() -> None:
    assert [field.name for field in list_fields() if f"| `{field.name}`" not in PAGE] == []


@pytest.mark.parametrize("kind", [SampleStatus, EmptyReason, MaskReason, DropReason])
def test_every_member_is_on_the_page_with_its_meaning(kind: type) -> None:
    assert [member for member in kind if f"- `{member}`: " not in PAGE] == []


@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_no_sample_carries_metadata_that_the_page_does_not_name(policy) -> None:
    story = Story(policy)
    first = story.say([1], [11], finish=FinishReason.LENGTH)
    story.say([2], [12], after=first, text="again")
    story.say([2], [13], after=first, text="again", delivered=policy is TREE)
    leaves = story.session.live_leaves()
    view = view_session(story.session, mismatches={leaf: [] for leaf in leaves}, with_messages=True)
    known, own, seen = {key for key, *_ in METADATA}, {key for key, *_ in OWN_METADATA}, set()
    hooks = load_hooks(picker="keep_siblings")
    for past_truncation in (False, True):
        samples = collect(
            view,
            session_metadata=story.metadata() | {"turnkeeper": {"metadata": {"task": 7}}},
            session_ledger=story.session.ledger,
            decode=spell,
            options=CollectOptions(hooks=hooks, past_truncation=past_truncation),
        ).samples
        assert [sample for sample in samples if not set(sample.metadata) <= known] == []
        seen |= {key for sample in samples for key in sample.metadata["turnkeeper"]}
    assert seen == own


def test_every_metadata_key_is_on_the_page() -> None:
    assert [key for key, *_ in (*METADATA, *OWN_METADATA, *SESSION_METADATA) if f"| `{key}` |" not in PAGE] == []
