"""The posting service: tweets, comments, retweets and followed users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse, to_integer
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Posting"]

_LOGGED_OUT = "the user is not authenticated"


class Posting(Api):
    """`TwitterAPI`. Tweets and comments are stored under their number, written as text.

    Every tweet has its own lists; in the leaderboard's class, tweets without mentions share one list, so that a
    mention in one of them appears in all, in later items too.
    """

    wire = "TwitterAPI"
    document = "posting_api.json"
    defaults: ClassVar[Mapping[str, object]] = {
        "username": "john",
        "password": "john123",
        "authenticated": False,
        "tweets": {},
        "comments": {},
        "retweets": {},
        "following_list": ["alice", "bob"],
        "tweet_counter": 0,
    }

    def __init__(self, config: Mapping[str, object], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        for name in ("tweets", "comments"):
            self.state[name] = {str(key): value for key, value in self.state[name].items()}

    def _tweet(self, tweet_id: Any) -> dict[str, Any] | None:
        number = to_integer(tweet_id)
        tweet: dict[str, Any] | None = self.state["tweets"].get(str(number)) if number is not None else None
        return tweet

    def _authenticate(self, username: Any, password: Any) -> Json:
        is_correct = username == self.state["username"] and password == self.state["password"]
        self.state["authenticated"] = is_correct or self.state["authenticated"]
        return {"authentication_status": is_correct}

    def _login_status(self) -> Json:
        return {"login_status": bool(self.state["authenticated"])}

    def _post(self, content: Any, tags: Any = None, mentions: Any = None) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        number = self.state["tweet_counter"]
        tweet = {
            "id": number,
            "username": self.state["username"],
            "content": content,
            "tags": [] if tags is None else tags,
            "mentions": [] if mentions is None else mentions,
        }
        self.state["tweets"][str(number)] = tweet
        self.state["tweet_counter"] += 1
        return tweet

    def _retweet(self, tweet_id: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        if self._tweet(tweet_id) is None:
            return refuse(f"there is no tweet {tweet_id}")
        user_retweets = self.state["retweets"].setdefault(self.state["username"], [])
        if tweet_id in user_retweets:
            return {"retweet_status": "retweeted before"}
        user_retweets.append(tweet_id)
        return {"retweet_status": "retweeted"}

    def _comment(self, tweet_id: Any, comment_content: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        if self._tweet(tweet_id) is None:
            return refuse(f"there is no tweet {tweet_id}")
        comments = self.state["comments"].setdefault(str(to_integer(tweet_id)), [])
        comments.append({"username": self.state["username"], "content": comment_content})
        return {"comment_status": "commented"}

    def _mention(self, tweet_id: Any, mentioned_usernames: Any) -> Json:
        tweet = self._tweet(tweet_id)
        if tweet is None:
            return refuse(f"there is no tweet {tweet_id}")
        tweet["mentions"].extend(mentioned_usernames)
        return {"mention_status": "mentioned"}

    def _follow(self, username_to_follow: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        is_followed = username_to_follow in self.state["following_list"]
        if not is_followed:
            self.state["following_list"].append(username_to_follow)
        return {"follow_status": not is_followed}

    def _unfollow(self, username_to_unfollow: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        is_followed = username_to_unfollow in self.state["following_list"]
        if is_followed:
            self.state["following_list"].remove(username_to_unfollow)
        return {"unfollow_status": is_followed}

    def _following(self) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        return {"following_list": self.state["following_list"]}

    def _get(self, tweet_id: Any) -> Json:
        return self._tweet(tweet_id) or refuse(f"there is no tweet {tweet_id}")

    def _user_tweets(self, username: Any) -> list[Any]:
        return [tweet for tweet in self.state["tweets"].values() if tweet["username"] == username]

    def _search(self, keyword: Any) -> Json:
        lowered_keyword = keyword.lower()
        return [
            tweet
            for tweet in self.state["tweets"].values()
            if lowered_keyword in tweet["content"].lower() or lowered_keyword in [tag.lower() for tag in tweet["tags"]]
        ]

    def _comments(self, tweet_id: Any) -> Json:
        if self._tweet(tweet_id) is None:
            return refuse(f"there is no tweet {tweet_id}")
        comments: list[Any] = self.state["comments"].get(str(to_integer(tweet_id)), [])
        return comments

    def _stats(self, username: Any) -> Json:
        following = len(self.state["following_list"]) if username == self.state["username"] else 0
        return {
            "tweet_count": len(self._user_tweets(username)),
            "following_count": following,
            "retweet_count": len(self.state["retweets"].get(username, [])),
        }

    operations = index_by_name(
        operation("authenticate_twitter(username, password)", _authenticate),
        operation("comment(tweet_id, comment_content)", _comment),
        operation("follow_user(username_to_follow)", _follow),
        operation("get_tweet(tweet_id)", _get),
        operation("get_tweet_comments(tweet_id)", _comments),
        operation("get_user_stats(username)", _stats),
        operation("get_user_tweets(username)", _user_tweets),
        operation("list_all_following()", _following),
        operation("mention(tweet_id, mentioned_usernames)", _mention),
        operation("post_tweet(content, tags=, mentions=)", _post),
        operation("posting_get_login_status()", _login_status),
        operation("retweet(tweet_id)", _retweet),
        operation("search_tweets(keyword)", _search),
        operation("unfollow_user(username_to_unfollow)", _unfollow),
    )
