"""The programs of the guide to agent SDKs, as they stand there, over each API; ``make test-clients`` installs the SDKs.

1. What the guide tells to install is what these tests install.
2. An edit, parallel calls, a second agent, a conversation taken up by another process, and a compaction: every main
   turn extends the last; only the second agent and what follows a compaction begin a root.
3. What came back rewritten is told, by kind; every reply of the policy is trained exactly as the engine said it.
"""

from pathlib import Path

import pytest

from clientkit import Run
from clients.install import NPM, PYTHON
from deskkit import SDKS, open_sdk, read_sdk_guide
from httpkit import Site
from scenariokit import Scenarios, Step, check_scenario, get_family, list_main_causes, read_rewritten

EDIT: list[Step] = [
    [("bash", {"command": "cat notes.txt"})],
    [("edit", {"path": "notes.txt", "old": "one", "new": "three"})],
    [("bash", {"command": "echo a"}), ("bash", {"command": "sleep 0.3; echo b"})],
]
INNER: list[Step] = [[("bash", {"command": "echo inner"})], "inner is over."]
RESUME: list[Step] = [[("bash", {"command": "echo again"})], "resume is over."]
SUMMARY = "Summary: what is left is (task rest)."
"""Behind the compaction the policy goes on with the rest."""


@pytest.mark.parametrize("name", SDKS)
def test_the_guide_installs_what_is_tested(name: str) -> None:
    packages = (PYTHON | NPM)[name]
    installed, _ = read_sdk_guide(name, "sh").splitlines()
    assert [word.strip("'") for word in installed.split()[2:]] == list(packages)


async def open_run(site: Site, api: str) -> Run:
    """A session as the guide opens it."""
    session = await site.create(history="tree")
    return Run(mode=api, history="tree", session=session, url=f"{site.url}{session}")


@pytest.mark.clients
@pytest.mark.parametrize("api", ["compatible", "chat", "responses", "messages"])
async def test_ai_sdk(api: str, tmp_path: Path) -> None:
    delegate: Step = [("delegate", {"task": "(task inner)"})]
    after: list[Step] = [[("bash", {"command": "echo after"})], "after is over."]
    stage = Scenarios({"edit": [*EDIT, delegate, "edit is over."], "inner": INNER, "resume": RESUME, "after": after})
    async with stage.serve() as site:
        run = await open_run(site, api)
        desk = open_sdk("ai-sdk", run, tmp_path)
        assert "edit is over." in await desk.run(*desk.flags, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run(*desk.flags, "Please (task resume)")
        batch = await check_scenario(site, run, stage, main_roots=2)
        assert read_rewritten(batch) == {"keys_added"}  # the defaults of the tools' schemas
        assert list_main_causes(site, run, stage) == ["first", "system_changed"]
        so_far = str(len((desk.work / "history.json").read_text()))
        pruned = await desk.run(*desk.flags, "Please (task after)", environment={"COMPACT_AT": so_far})
        assert "after is over." in pruned
        await check_scenario(site, run, stage, main_roots=3)
        assert list_main_causes(site, run, stage)[2] == "reply_rewritten"


@pytest.mark.clients
@pytest.mark.parametrize(
    ("api", "family"),
    [("chat", "tiny"), ("chat", "qwen36"), ("chat", "gptoss"), ("responses", "tiny"), ("messages", "tiny")],
)
async def test_google_adk(api: str, family: str, tmp_path: Path) -> None:
    stage = Scenarios(
        renderer=get_family(family),
        scripts={
            "edit": [*EDIT, [("helper", {"request": "(task inner)"})], "edit is over."],
            "inner": INNER,
            "resume": RESUME,
            "long": [[("bash", {"command": "seq 2000"})], *[[("bash", {"command": f"echo {n}"})] for n in range(3)]],
            "rest": [[("bash", {"command": "echo rest"})], "rest is over."],
        },
        summary=SUMMARY,
    )
    async with stage.serve() as site:
        run = await open_run(site, api)
        desk = open_sdk("google-adk", run, tmp_path)
        assert "edit is over." in await desk.run(*desk.flags, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run(*desk.flags, "Please (task resume)")
        batch = await check_scenario(site, run, stage, main_roots=2)
        assert read_rewritten(batch) == set()
        assert list_main_causes(site, run, stage) == ["first", "system_changed"]
        compacted = await desk.run(*desk.flags, "Please (task long)", environment={"COMPACT_AT": "2000"})
        assert "rest is over." in compacted
        await check_scenario(site, run, stage, main_roots=3, sides=1)
        assert list_main_causes(site, run, stage)[2] == "compacted"


@pytest.mark.clients
async def test_google_adk_hands_the_conversation_over(tmp_path: Path) -> None:
    """The other agent is shown what was done as quotations, and answers the user from then on."""
    stage = Scenarios(
        {
            "edit": [
                [("bash", {"command": "echo '(task review)'"})],
                [("transfer_to_agent", {"agent_name": "reviewer"})],
            ],
            "review": [[("bash", {"command": "echo reviewed"})], "review is over."],
            "resume": RESUME,
        }
    )
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        desk = open_sdk("google-adk", run, tmp_path)
        assert "review is over." in await desk.run(*desk.flags, "Please (task edit)")
        assert "resume is over." in await desk.run(*desk.flags, "Please (task resume)")
        await check_scenario(site, run, stage, main_roots=2)
        assert list_main_causes(site, run, stage) == ["first", "system_changed"]


@pytest.mark.clients
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_crewai(api: str, tmp_path: Path) -> None:
    stage = Scenarios(
        {
            "edit": [*EDIT, [("delegate", {"task": "(task inner)"})], "edit is over."],
            "inner": INNER,
            "resume": RESUME,
            # Each less than a quarter of the window that CrewAI gives an unknown model, together more than all of it.
            "long": [[("bash", {"command": f"seq {n}000 {n + 1}100"})] for n in range(1, 8)],
            "rest": [[("bash", {"command": "echo rest"})], "rest is over."],
        },
        summary=SUMMARY,
    )
    async with stage.serve() as site:
        run = await open_run(site, api)
        desk = open_sdk("crewai", run, tmp_path)
        assert "edit is over." in await desk.run(*desk.flags, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run(*desk.flags, "Please (task resume)")
        batch = await check_scenario(site, run, stage, main_roots=2)
        assert read_rewritten(batch) == {"text_left_out"}
        assert list_main_causes(site, run, stage) == ["first", "system_changed"]
        if api == "messages":  # the window that CrewAI gives an unknown model is too large there to be filled
            return
        assert "rest is over." in await desk.run(*desk.flags, "Please (task long)")
        await check_scenario(site, run, stage, main_roots=3, sides=2)
        assert list_main_causes(site, run, stage)[2] == "other_start"


@pytest.mark.clients
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_crewai_knows_a_prompt_that_is_too_long(api: str, tmp_path: Path) -> None:
    """It asks for a summary then, for which this session has no room either."""
    stage = Scenarios({"long": [[("bash", {"command": "seq 1000"})]]})
    async with stage.serve() as site:
        session = await site.create(history="tree", max_seq_len=1000)
        run = Run(mode=api, history="tree", session=session, url=f"{site.url}{session}")
        desk = open_sdk("crewai", run, tmp_path)
        with pytest.raises(AssertionError, match="LLMContextLengthExceededError"):
            await desk.run(*desk.flags, "Please (task long)")
