"""A page taken apart: its tags, attributes, and all that is read in it."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self._texts = [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self._texts.append(data)
