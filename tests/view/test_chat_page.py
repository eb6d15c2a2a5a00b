"""The chat page over a real socket, and in a real browser: what is said is text, and nothing comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from types import SimpleNamespace

import httpx2
import pytest
from websockets.sync.client import connect

from evolvent.agents.history import Turn
from evolvent.agents.speaker import Conversation, Exchange, FixedSource, NamedPolicy, PolicyChat, ReplyPiece
from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, EngineError
from evolvent.serve.listen import listen, listening_url
from evolvent.serve.protocol import LimitedServer, make_server_config
from evolvent.view import chat
from evolvent.view.chat import ChatInfo, chat_app, chat_page
from evolvent.web import Access
from tests.bench.small_policies import small_policy

HOSTILE = (
    "<script>document.title='owned'</script> </textarea></style></title> "
    "<img src=x onerror=\"document.title='owned'\"> {{ 7 * 191 }} \u202egnp.exe \x1b[31m [x](javascript:alert(1)) '"
    ' " & </p>'
)


@dataclass
class Scripted:
    """A speaker that says what it is told to, in two pieces; `steps` are the names it takes on before each reply."""

    reply_text: str = "so be it"
    steps: list[str] = field(default_factory=list)
    trouble: Exception | None = None
    hold: threading.Event | None = None

    def __post_init__(self):
        self.voice, self.ready, self.begun = SimpleNamespace(name="step 1"), "step 1", threading.Event()

    def newest(self):
        return self.ready

    def reply(self, talk, text, *, stop):
        self.begun.set()
        if self.hold is not None:
            while not self.hold.wait(0.01):
                if stop():
                    raise EngineError("the reply was given up", value=text)
        if self.trouble is not None:
            raise self.trouble
        notes = ()
        if self.steps:
            self.voice = SimpleNamespace(name=self.steps.pop(0))
            notes = (f"{self.voice.name} speaks",)
        half = len(self.reply_text) // 2
        pieces = (ReplyPiece(self.reply_text[:half], -0.01), ReplyPiece(self.reply_text[half:], -3.0))
        return Exchange(
            text, self.reply_text, pieces, Turn(text, (5, 6, 7), False), self.voice.name, notes, True, True, 1.25
        )


@contextmanager
def served(speaker, **more):
    """The page of a speaker on a free port; stopped at the end."""
    leaving = threading.Event()
    app = chat_app(
        speaker, Conversation(), ChatInfo("a run", "temperature 0", **more), access=Access(), stop=leaving.is_set
    )
    bound = listen("127.0.0.1", 0)
    server = LimitedServer(make_server_config(app, log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        with httpx2.Client(base_url=listening_url(bound), trust_env=False, follow_redirects=True, timeout=30) as client:
            yield client
    finally:
        leaving.set()
        server.should_exit = True
        thread.join()
        bound.close()


class Page(HTMLParser):
    """The tags, attributes and texts of a page; `said` and `replied` are the texts of the turns."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self.inside = [], [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "input"):
            self.inside.append((tag, dict(attrs).get("class") or dict(attrs).get("id") or ""))

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop()[0] != tag:
            pass

    def handle_data(self, data):
        where = [name for _, name in self.inside]
        for name in ("said mine", "said theirs", "shift", "problem", "voice", "words", "foot"):
            if name in where:
                self.texts.setdefault(name, []).append(data)

    def text(self, name):
        return " ".join("".join(self.texts.get(name, [])).split())


def test_a_conversation_over_http():
    policy = small_policy(seed=4)
    speaker = PolicyChat(FixedSource(NamedPolicy(policy, "small")), sampling=Sampling(temperature=0.0), max_tokens=5)
    with served(speaker) as client:
        begun = client.get("/")
        assert re.fullmatch(r"/talk/[\w-]{22}", begun.url.path) and "Say something." in begun.text
        here = begun.url.path
        first = client.post(here, data={"text": "you see a lamp"})
        assert first.status_code == 200 and first.url.path == here and first.history[0].status_code == 303
        second = Page(client.post(here, data={"text": "go north"}).text)
        talk = Conversation()
        for text in ("you see a lamp", "go north"):
            talk = talk.after(
                PolicyChat(
                    FixedSource(NamedPolicy(policy, "small")), sampling=Sampling(temperature=0.0), max_tokens=5
                ).reply(talk, text)
            )
        for one in talk.exchanges:
            assert one.message in second.text("said mine") and one.reply in second.text("said theirs")
        assert second.text("voice") == "speaking from small"
        other = client.get("/")
        assert other.url.path != here and "Say something." in other.text, "a conversation of its own"
        assert "go north" in client.get(here).text
        assert client.get("/state").json() == {"voice": "small", "newest": "small"}


def test_it_says_who_speaks_and_what_happened():
    with served(Scripted(steps=["step 20"])) as client:
        page = Page(client.post(client.get("/").url.path, data={"text": "hello"}).text)
    assert page.text("shift") == "step 20 speaks" and page.text("voice") == "speaking from step 20"
    assert page.text("foot") == "3 tokens, 1.2 s, cut at the limit, earlier turns did not fit and were left out"
    shades = [value for name, value in page.attributes if name == "class" and value.startswith("piece")]
    assert shades == ["piece unsure-0", "piece unsure-4"]
    assert ("title", "probability 0.05") in page.attributes


def test_the_policy_allows_this_style_and_this_script_only():
    with served(Scripted()) as client:
        found = client.get("/")
    rules = dict(rule.split(" ", 1) for rule in found.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'" and rules["base-uri"] == "'none'"
    assert rules["frame-ancestors"] == "'none'" and rules["form-action"] == "'self'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", found.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert found.headers["cache-control"] == "no-store" and found.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://|//[a-z]", found.text.partition("<script>")[0].partition("</style>")[2])


def test_what_is_said_is_text():
    with served(Scripted(HOSTILE)) as client:
        here = client.get("/").url.path
        page = Page(client.post(here, data={"text": HOSTILE}).text)
    assert page.tags.count("script") == page.tags.count("style") == page.tags.count("textarea") == 1
    assert not {"img", "iframe", "svg", "object", "base", "b"} & set(page.tags) - {"b"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>document.title='owned'</script>" in page.text("said mine")
    assert "{{ 7 * 191 }}" in page.text("said theirs") and "U+202E" in page.text("said theirs")
    assert "\u202e" not in page.text("said mine") and "\x1b" not in page.text("said theirs")


def test_trouble_is_told_and_the_text_kept():
    speaker = Scripted()
    with served(speaker) as client:
        here = client.get("/").url.path
        client.post(here, data={"text": "hello"})
        speaker.trouble = ConfigError(f"a word it does not know {HOSTILE}")
        failed = client.post(here, data={"text": f"again {HOSTILE}"})
        page = Page(failed.text)
        assert failed.status_code == 400 and "a word it does not know <script>" in page.text("problem")
        assert page.tags.count("script") == 1 and "again &lt;script&gt;" in failed.text, "in the box, for another try"
        assert page.texts["said mine"].count("hello") == 1 and "again" not in page.text("said mine")
        speaker.trouble = ZeroDivisionError("a bug")
        assert "ZeroDivisionError" in Page(client.post(here, data={"text": "x"}).text).text("problem")
        for body in ({}, {"text": "  \r\n "}, {"text": "x" * 20_001}, {"other": "x"}):
            assert client.post(here, data=body).status_code == 400
        speaker.trouble = None
        assert client.post(here, content=b"text=%ff%fe+ok").status_code == 200


def test_foreign_pages_and_names_are_refused():
    with served(Scripted()) as client:
        here = client.get("/").url.path
        assert client.get("/", headers={"host": "evil.example"}).status_code == 403
        for origin in ("http://evil.example", "null"):
            assert client.post(here, data={"text": "x"}, headers={"origin": origin}).status_code == 403
        own = str(client.base_url).rstrip("/")
        assert client.post(here, data={"text": "x"}, headers={"origin": own}).status_code == 200
        assert client.post(here, content=b"text=" + b"x" * (9 * 2**20)).status_code == 413
        assert client.get("/nothing").status_code == 404 and client.delete(here).status_code == 405
        for name in ("..%2f..", "short", "x" * 400):
            told = client.get(f"/talk/{name}", follow_redirects=False)
            assert told.status_code == 404 or re.fullmatch(r"/talk/[\w-]{22}", told.headers["location"])


def test_only_so_many_conversations_are_remembered(monkeypatch):
    monkeypatch.setattr(chat, "_MAX_CONVERSATIONS", 2)
    with served(Scripted()) as client:
        paths = [client.get("/").url.path for _ in range(3)]
        for path in paths:
            client.post(path, data={"text": "hello"})
        kept = ["hello" in client.get(path).text for path in paths]
    assert kept == [False, True, True]


def test_replies_come_one_after_the_other_and_end_with_the_server(monkeypatch):
    monkeypatch.setattr(chat, "_MAX_WAITING", 2)
    speaker = Scripted(hold=threading.Event())
    with served(speaker) as client:
        here, answers = client.get("/").url.path, []

        def ask(text):
            with httpx2.Client(base_url=client.base_url, trust_env=False, follow_redirects=True, timeout=30) as own:
                told = own.post(here, data={"text": text})
                assert told.status_code == 200 or "too many" in told.text or "given up" in told.text
                answers.append(told.status_code)

        asking = [threading.Thread(target=ask, args=(text,)) for text in ("one", "two", "three")]
        for thread in asking:
            thread.start()
        while not answers:
            time.sleep(0.01)
        assert answers == [400], "too many at once: one is refused, two wait"
        assert client.get("/state").status_code == 200, "looking on does not wait"
        speaker.hold.set()
        for thread in asking:
            thread.join()
        page = Page(client.get(here).text)
        assert sorted(answers) == [200, 200, 400] and page.tags.count("i") == 0
        assert len({"one", "two", "three"} & set(page.texts["said mine"])) == 2
        speaker.hold.clear()
        speaker.begun.clear()
        last = threading.Thread(target=ask, args=("four",))
        last.start()
        speaker.begun.wait()
    last.join()
    assert answers[3:] == [400], "it was given up when the server ended"


def test_the_page_of_a_closed_vocabulary_says_so():
    page = chat_page(Conversation(), ChatInfo("run", vocabulary_size=1234), number="x" * 22, voice=None)
    assert "1,234 words" in page and "nobody speaks yet" in page


# ---------------------------------------------------------------------- in a browser


class Tab:
    """A tab of Chromium, driven over its debugging protocol."""

    def __init__(self, program, profile):
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-port=0",
        ]
        command = [program, *flags, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.link, self.count, self.session, self.events = None, 0, None, []

    def address(self):
        return next(found[0] for line in self.process.stderr if (found := re.search(r"ws://\S+", line)))

    def open(self, link):
        """Open a page."""
        self.link = link
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.count += 1
        session = {"sessionId": self.session} if self.session else {}
        self.link.send(json.dumps({"id": self.count, "method": method, "params": parameters, **session}))
        while True:
            message = json.loads(self.link.recv(timeout=60))
            if message.get("id") == self.count:
                return message["result"]
            self.events.append(message)

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + 60
        while not self.value(expression):
            assert time.monotonic() < end, f"never: {expression}"
            time.sleep(0.02)

    def type(self, text):
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key="Enter",
                code="Enter",
                windowsVirtualKeyCode=13,
                **({"text": "\r"} if kind == "keyDown" else {}),
            )

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def tab(chromium):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        tab = Tab(chromium, profile)
        try:
            with connect(tab.address(), proxy=None, max_size=None) as link:
                tab.open(link)
                yield tab
        finally:
            tab.close()


@pytest.mark.browser
def test_in_a_browser_everything_said_is_text_and_nothing_is_loaded(tab):
    speaker = Scripted(HOSTILE)
    with served(speaker) as client:
        tab.call("Page.navigate", url=str(client.base_url))
        tab.until("!!document.querySelector('.empty') && document.activeElement.id === 'text'")
        here = tab.value("location.href")
        tab.type(HOSTILE)
        tab.until("document.querySelectorAll('.theirs .piece').length === 2")
        assert tab.value("document.querySelector('.empty')") is None and tab.value("location.href") == here
        assert "<script>document.title='owned'" in tab.value("document.querySelector('.theirs').innerText")
        assert tab.value("document.querySelectorAll('main script, main img').length") == 0
        speaker.steps, speaker.ready = ["step 7"], "step 7"
        tab.until("document.getElementById('voice').textContent === 'next reply from step 7'")
        tab.type("and now?")
        tab.until("document.querySelectorAll('.theirs').length === 2")
        tab.until("document.querySelector('.shift')?.textContent === 'step 7 speaks'")
        assert tab.value("document.getElementById('voice').textContent") == "speaking from step 7"
        speaker.trouble = ConfigError("a word it does not know")
        tab.type("zebra")
        tab.until("document.querySelector('.problem')?.textContent.includes('a word it does not know')")
        assert tab.value("document.getElementById('text').value") == "zebra"
        assert tab.value("document.title") == "a run, a conversation"
        asked = {e["params"]["request"]["url"] for e in tab.events if e.get("method") == "Network.requestWillBeSent"}
        own = str(client.base_url).rstrip("/")
        assert asked and all(url.startswith((own, "data:")) for url in asked)
        tab.call("Page.reload")
        tab.until("document.querySelectorAll('.theirs').length === 2")
        assert tab.value("document.title") == "a run, a conversation"
    wrong = [e["params"] for e in tab.events if e.get("method") == "Runtime.exceptionThrown"]
    assert wrong == []


@pytest.mark.browser
def test_a_server_that_is_gone_is_told_of(tab):
    with served(Scripted()) as client:
        tab.call("Page.navigate", url=str(client.base_url))
        tab.until("!!document.querySelector('.empty')")
    tab.type("hello")
    tab.until("document.querySelector('.problem')?.textContent.startsWith('The server did not answer')")
    assert tab.value("document.getElementById('text').value") == "hello"
