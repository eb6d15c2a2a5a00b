"""Pages: read, cut down and written, by hand; and HTML that nobody should have to read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import mark, raises

from evolvent.errors import SampleInvalid
from evolvent.worlds.web_replay.pages import MAX_DEPTH, Element, parse_page, prune, render

PAGE = """<html backend_node_id="1"><body backend_node_id="2">
  <div backend_node_id="3"><div backend_node_id="4"><a backend_node_id="5" href="http://x.y" title="Go  home"><text>Home
  </text></a></div></div>
  <ul backend_node_id="6" role="menu"><li backend_node_id="7">one</li><li backend_node_id="8">two</li>
  <li backend_node_id="9">three</li><li backend_node_id="10">four</li><li backend_node_id="11">five</li></ul>
  <form backend_node_id="12"><input backend_node_id="13" type="text" aria-label="Your &lt;city&gt;"/><br><input
  backend_node_id="14" type="hidden" value='none'></form>
</body></html>"""


def shown(source: str, *ids: str, **limits: int) -> str:
    return render(prune(parse_page(source), ids, **limits))


def test_what_is_kept() -> None:
    """A candidate with ancestors and siblings; bare elements around one other are dissolved; ids on candidates only."""
    assert shown(PAGE, "5") == "<a id=5 go home> Home </a>"
    assert shown(PAGE, "7", siblings=1) == "<ul menu> <li id=7> one </li> <li> two </li> </ul>"
    assert shown(PAGE, "9") == (
        "<ul menu> <li> one </li> <li> two </li> <li id=9> three </li> <li> four </li> <li> five </li> </ul>"
    )
    assert shown(PAGE, "9", "11", siblings=0) == "<ul menu> <li id=9> three </li> <li id=11> five </li> </ul>"
    assert shown(PAGE, "6", descendants=2, siblings=0) == "<ul id=6 menu> <li> one </li> <li> two </li> </ul>"
    assert shown(PAGE, "6", depth=0, siblings=0) == "<ul id=6 menu> </ul>"
    assert shown(PAGE, "13", siblings=0) == "<input id=13 text your <city>> </input>"
    assert shown(PAGE, "3", "13", siblings=0) == (
        "<body> <div id=3> <a go home> Home </a> </div> <input id=13 text your <city>> </input> </body>"
    )
    assert shown(PAGE) == "" == shown(PAGE, "99", "")


def test_depth_counts_elements_below_a_candidate() -> None:
    source = '<p backend_node_id="1">a<b>b<i>c<u>d</u></i></b></p>'
    assert shown(source, "1", depth=2) == "<p id=1> a <b> b <i> c </i> </b> </p>"
    assert shown(source, "1") == "<p id=1> a <b> b <i> c <u> d </u> </i> </b> </p>"
    deep = '<p backend_node_id="1">' + "<b title=x>" * 8 + "end"
    assert shown(deep, "1").count("<b x>") == 5


def test_words_of_attributes_and_texts() -> None:
    """5 words of each attribute and 20 in all, no word of 15 letters, none twice; texts of 20 words."""
    source = (
        '<a backend_node_id="1" role="button" title="a b c d e f" alt="Button" aria-label="exactly-fifteen '
        'fourteen-long- ok" name="button" label="g h i j k" value="l m n o p" placeholder="q r s t u" class="v w" '
        'href="x">' + " ".join(map(str, range(30))) + "</a>"
    )
    head = "button fourteen-long- ok g h i j k a b c d e l m n o p q r"
    assert len(head.split()) == 20
    assert shown(source, "1") == f"<a id=1 {head}> {' '.join(map(str, range(20)))} </a>"
    assert shown('<a backend_node_id="1" role="none" title="http://a" type="NULL" alt=""></a>', "1") == "<a id=1> </a>"


def test_html_that_is_not_quite_right() -> None:
    """End tags without start, elements never closed, marks that are no tags, comments, and what a browser skips."""
    assert shown('</b><p backend_node_id="1">a < b <i>c</p>d', "1") == "<p id=1> a < b <i> c </i> </p> d"
    assert shown('<!doctype html><!-- <p> --><p backend_node_id="1">x<!-- y -->z</p>', "1") == "<p id=1> x z </p>"
    assert shown('<?xml version="1.0"?><P BACKEND_NODE_ID=1 TITLE=Big>x</P>', "1") == "<p id=1 big> x </p>"
    assert shown('<p backend_node_id="1"><img alt="a">b<br/>c</p>', "1") == "<p id=1> <img a> </img> b c </p>"
    assert shown('<p backend_node_id="1" title="a" title="b">&amp;&#65;&bogus;</p>', "1") == "<p id=1 a> &A&bogus; </p>"
    assert shown('<p backend_node_id="1">x<!-- never closed <b>y</b>', "1") == "<p id=1> x </p>"
    assert shown('<p backend_node_id="1"/><q backend_node_id="2">y</q>', "1", siblings=0) == "<p id=1> </p>"


@mark.parametrize(
    "source",
    [
        "<a ",
        "<!--",
        "<",
        "</",
        '<a b="',
        "<a b='",
        "<![CDATA[",
        "<?",
        "<a\x00",
        "&#",
        "<!",
        "<a a=x ",
        "</p>",
        "<br>",
        "&lt;",
        '<a b="c" ',
        "<text>",
        "\x00",
        "<a/>",
    ],
)
def test_hostile_pages_are_read_in_linear_time(source: str) -> None:
    """30,000 times over: a reader in the square of that would take hours."""
    try:
        tree = parse_page(source * 30_000)
    except SampleInvalid as error:
        assert "too large" in str(error)
    else:
        assert len(render(prune(tree, ["1"]))) < 10


def test_deep_and_crossed_elements() -> None:
    deep = "<div title=x>" * (MAX_DEPTH - 2) + '<a backend_node_id="1">x</a>'
    assert shown(deep, "1").count("<div x>") == MAX_DEPTH - 2
    assert shown("<b><i>" * 200 + "</b>" * 100_000 + '<a backend_node_id="1">x</a>', "1") == "<a id=1> x </a>"
    with raises(SampleInvalid, match="too large"):
        parse_page("<div>" * (MAX_DEPTH + 1))
    for nothing in ("", "  \n"):
        with raises(SampleInvalid, match="page size out of range"):
            parse_page(nothing)


@st.composite
def trees(draw: st.DrawFn) -> str:
    """A page whose elements are numbered in their order, with titles on some of them."""
    shape = draw(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=25))
    numbers = iter(range(1, 1000))

    def write(node: list[object]) -> str:
        number = next(numbers)
        title = f' title="t{number}"' if number % 3 else ""
        return f'<p backend_node_id="{number}"{title}>{"".join(write(one) for one in node)}w{number}</p>'  # type: ignore[arg-type]

    return write(shape)


def brute(tree: Element, ids: set[str], depth: int, siblings: int) -> set[str]:
    """The ids of what must be kept, from the definition, one element at a time."""
    every = [one for one in tree.walk() if one.id]

    def above(one: Element) -> list[Element]:
        return [] if one.parent is None else [one.parent, *above(one.parent)]

    kept = set()
    for one in every:
        for candidate in every:
            if candidate.id in ids:
                line = above(one)
                inside = candidate in line and line.index(candidate) < depth
                row = [other for other in (one.parent.children if one.parent else []) if other.tag]
                near = candidate in row and abs(row.index(candidate) - row.index(one)) <= siblings
                if one is candidate or one in above(candidate) or inside or near:
                    kept.add(one.id)
    return kept


@settings(max_examples=60, deadline=None)
@given(source=trees(), data=st.data())
def test_pruning_is_what_it_is_defined_to_be(source: str, data: st.DataObject) -> None:
    tree = parse_page(source)
    every = [one.id for one in tree.walk() if one.id]
    ids = set(data.draw(st.lists(st.sampled_from(every), max_size=3)))
    depth, siblings = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
    pruned = prune(tree, ids, depth=depth, siblings=siblings)
    assert {one.id for one in pruned.walk() if one.id} == ids
    texts = {one.text for one in pruned.walk() if not one.tag}
    assert texts == {f"w{number}" for number in brute(tree, ids, depth, siblings)}
    assert [one.id for one in tree.walk() if one.id] == every  # the page itself is not touched
