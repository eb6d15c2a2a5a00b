"""Questions over a collection of short documents: a search engine, generated collections, a reader for user files."""
