"""The reference page of samples.

1. It names every field, status, reason and metadata key; no sample carries a key that it does not name.
2. The file is what the tables render (checked with the other reference pages).
"""

import pytest

from samples.builders import LINEAR, OPTIONS, TREE, Story, spell
from turnkeeper.core import DropReason, FinishReason, MaskReason
from turnkeeper.samples import CollectOptions, EmptyReason, SampleStatus, collect, view_session
from turnkeeper.samples.reference import METADATA, OWN_METADATA, render_samples
from turnkeeper.samples.wire import FIELDS

PAGE = render_samples()


def test_every_field_is_on_the_page() -> None:
    assert [field.name for field in FIELDS if f"| `{field.name}`" not in PAGE] == []


@pytest.mark.parametrize("kind", [SampleStatus, EmptyReason, MaskReason, DropReason])
def test_every_member_is_on_the_page_with_its_meaning(kind: type) -> None:
    assert [member for member in kind if f"- `{member}`: " not in PAGE] == []


@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_no_sample_carries_metadata_that_the_page_does_not_name(policy) -> None:
    story = Story(policy)
    first = story.say([1], [11], finish=FinishReason.LENGTH)
    story.say([2], [12], after=first)
    view = view_session(story.session, mismatches={story.session.live_leaves()[0]: []}, with_messages=True)
    known, own, seen = {key for key, *_ in METADATA}, {key for key, *_ in OWN_METADATA}, set()
    for past_truncation in (False, True):
        options = CollectOptions(hooks=OPTIONS.hooks, past_truncation=past_truncation)
        (sample,) = collect(
            view, session_metadata=story.metadata(), session_ledger=story.session.ledger, decode=spell, options=options
        ).samples
        assert set(sample.metadata) <= known
        seen |= set(sample.metadata["turnkeeper"])
    assert seen == own


def test_every_metadata_key_is_on_the_page() -> None:
    assert [key for key, *_ in (*METADATA, *OWN_METADATA) if f"| `{key}` |" not in PAGE] == []
