"""The application tells of itself, and answers what it does not know by errors."""

from __future__ import annotations

import pytest

from octavo import __version__
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import served


def test_models_are_listed_by_all_their_names():
    async def test(server):
        cards = (await server.get("/v1/models")).json()["data"]
        assert [card["id"] for card in cards] == ["fake", "alias"]
        assert cards[0]["max_model_len"] == 400
        assert [card["parent"] for card in cards] == [None, "fake"]

    served(test)


def test_clients_are_told_of_the_longest_text_that_the_memory_holds():
    async def test(server):
        (card, _) = (await server.get("/v1/models")).json()["data"]
        assert card["max_model_len"] == 80  # of 400 that the model has
        prompt = {"prompt": [1] * 79, "max_tokens": 1}
        assert (await server.post("/v1/completions", **prompt)).status_code == 200

    served(test, build=lambda: fake_loop(20))


def test_one_model_is_shown_by_any_of_its_names():
    async def test(server):
        assert (await server.get("/v1/models/alias")).json()["id"] == "alias"
        reply = await server.get("/v1/models/some/other")
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "model_not_found"

    served(test)


def test_the_version_is_the_package_s():
    async def test(server):
        assert (await server.get("/version")).json() == {"version": __version__}

    served(test)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nothing", 404, "not_found_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
    ],
)
def test_what_is_no_route_is_an_error_in_the_usual_form(method, path, status, kind):
    async def test(server):
        reply = await server.client.request(method, path)
        assert reply.status_code == status
        error = reply.json()["error"]
        assert error["type"] == kind
        assert error.keys() == {"message", "type", "param", "code"}

    served(test)


def test_an_exception_that_nobody_foresaw_tells_the_client_its_id_and_no_more():
    async def test(server):
        async def fail():
            raise KeyError("secret")

        server.app.add_api_route("/fail", fail)
        reply = await server.client.get("/fail", headers={"X-Request-Id": "mine"})
        assert reply.status_code == 500
        assert reply.json()["error"]["message"] == "internal error, request id mine"
        assert reply.json()["error"]["type"] == "server_error"

    served(test)
