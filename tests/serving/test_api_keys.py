"""Every route but /health needs a key, and an administrator's routes one of their own."""

from __future__ import annotations

import pytest
from starlette.routing import Route

from octavo.errors import ConfigError
from octavo.server.keys import KeyHolder, KeyTable, digest_of, holders_of_flags
from octavo.server.middleware import ADMIN_PATHS, HEALTH_PATHS
from octavo.server.routes import admin
from octavo.server.settings import CorsSettings, ServerSettings
from octavo.server.tenants import ANYBODY, SHARED, Tenant
from octavo.testing.near_server import served

KEYS = KeyTable([KeyHolder(Tenant(name="alice"), ("alices",))], ["the-admins"])
WITHOUT_ADMIN = KeyTable([KeyHolder(Tenant(name="alice"), ("alices",))])
ALICE = {"Authorization": "Bearer alices"}
ADMIN = {"Authorization": "Bearer the-admins"}


def routes_of(server):
    """All methods and paths, those that no document names included."""
    for path, methods in _walk(server.app.routes):
        for method in methods:
            yield method, path.replace("{name:path}", "fake")


def _walk(routes):
    for route in routes:
        if isinstance(route, Route):
            yield route.path, route.methods
        else:
            yield from _walk(getattr(route, "original_router", route).routes)


def test_the_routes_that_are_walked_are_all_there_are():
    async def test(server):
        paths = {path for _, path in routes_of(server)}
        assert paths >= HEALTH_PATHS | ADMIN_PATHS | {"/v1/models", "/metrics", "/openapi.json"}
        assert paths >= set(
            (await server.client.get("/openapi.json", headers=ALICE)).json()["paths"]
        ) - {"/v1/models/{name}", "/v1/cache/pins/{name}"}

    served(test, keys=KEYS)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}])
def test_every_route_but_health_needs_a_key(headers):
    async def test(server):
        for method, path in routes_of(server):
            reply = await server.client.request(method, path, headers=headers)
            if path in HEALTH_PATHS:
                assert reply.status_code in (200, 405), path
                continue
            assert reply.status_code == 401, path
            assert reply.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert reply.json()["error"]["type"] == "authentication_error"
        assert (await server.get("/nothing")).status_code == 401, "nor is it told what there is"

    served(test, keys=KEYS)


@pytest.mark.parametrize(
    "headers",
    [ALICE, {"Authorization": "bearer  alices "}, {"X-Api-Key": "alices"}],
)
def test_a_tenant_s_key_opens_the_tenant_s_routes(headers):
    async def test(server):
        assert (await server.client.get("/v1/models", headers=headers)).status_code == 200
        assert (await server.client.get("/metrics", headers=headers)).status_code == 200
        assert (await server.client.get("/nothing", headers=headers)).status_code == 404

    served(test, keys=KEYS)


@pytest.mark.parametrize("admins", [[], ["the-admins"]])
def test_no_tenant_of_several_reads_what_others_use(admins):
    keys = KeyTable(
        [KeyHolder(Tenant(name=name), (f"{name}s",)) for name in ("alice", "bob")], admins
    )

    async def test(server):
        reply = await server.client.get("/metrics", headers=ALICE)
        assert reply.status_code == 403
        assert "--open-metrics" in reply.json()["error"]["message"]
        assert (await server.get("/metrics")).status_code == 401
        status = 200 if admins else 401
        assert (await server.client.get("/metrics", headers=ADMIN)).status_code == status

    async def test_open(server):
        assert (await server.client.get("/metrics", headers=ALICE)).status_code == 200

    served(test, keys=keys)
    served(test_open, keys=keys, settings=ServerSettings(open_metrics=True))


def test_only_an_administrator_s_key_opens_an_administrator_s_routes():
    async def test(server):
        for method, path in routes_of(server):
            if path not in ADMIN_PATHS:
                continue
            reply = await server.client.request(method, path, headers=ALICE)
            assert reply.status_code == 403, path
        assert (await server.client.get("/server_info", headers=ADMIN)).status_code == 200
        assert (await server.client.get("/metrics", headers=ADMIN)).status_code == 200
        assert (await server.client.get("/v1/models", headers=ADMIN)).status_code == 401

    served(test, keys=KEYS)


def test_an_administrator_s_routes_are_those_that_need_its_key():
    async def test(server):
        assert {route.path for route in admin.router(server.parts).routes} == ADMIN_PATHS

    served(test, keys=KEYS)


def test_without_an_administrator_s_key_its_routes_are_not_there():
    async def test(server):
        for path in ADMIN_PATHS:
            assert (await server.client.post(path, headers=ALICE)).status_code == 404
            assert (await server.client.get(path, headers=ALICE)).status_code == 404

    served(test, keys=WITHOUT_ADMIN)


def test_without_any_key_everything_but_administration_is_open():
    async def test(server):
        assert (await server.get("/v1/models")).status_code == 200
        assert (await server.client.post("/pause")).status_code == 404

    served(test)


def test_an_administrator_alone_keeps_its_own_routes_closed():
    async def test(server):
        assert (await server.get("/v1/models")).status_code == 200
        assert (await server.client.post("/pause")).status_code == 401
        assert (await server.client.post("/pause", headers=ALICE)).status_code == 403
        assert (await server.client.post("/pause", headers=ADMIN)).status_code == 200

    served(test, keys=KeyTable([], ["the-admins"]))


def test_metrics_are_open_if_that_is_asked_for():
    async def test(server):
        assert (await server.get("/metrics")).status_code == 200
        assert (await server.get("/v1/models")).status_code == 401

    served(test, keys=KEYS, settings=ServerSettings(open_metrics=True))


def test_keys_are_asked_for_below_a_proxy_s_path_too():
    async def test(server):
        app = server.app

        async def below(scope, receive, send):
            await app({**scope, "root_path": "/llm", "path": "/llm" + scope["path"]}, receive, send)

        server.client._transport.app = below
        assert (await server.get("/health")).status_code == 200
        assert (await server.get("/v1/models")).status_code == 401
        assert (await server.client.get("/server_info", headers=ALICE)).status_code == 403
        assert (await server.client.get("/server_info", headers=ADMIN)).status_code == 200

    served(test, keys=KEYS)


def test_an_answer_carries_the_id_of_its_request():
    async def test(server):
        reply = await server.client.get("/v1/models", headers={"X-Request-Id": "mine"})
        assert reply.headers["x-request-id"] == "mine"
        assert len((await server.get("/v1/models")).headers["x-request-id"]) == 32
        for bad in (b"x" * 129, "é".encode(), b"a b"):
            reply = await server.client.get("/v1/models", headers=[(b"X-Request-Id", bad)])
            assert len(reply.headers["x-request-id"]) == 32

    served(test)


def test_the_document_may_be_left_out():
    async def test(server):
        assert (await server.get("/openapi.json")).status_code == 404
        assert (await server.get("/version")).status_code == 200

    served(test, settings=ServerSettings(document=False))


def test_pages_of_other_places_may_not_call_the_server_unless_they_are_named():
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}

    async def closed(server):
        reply = await server.client.options("/v1/models", headers=asked)
        assert "access-control-allow-origin" not in reply.headers

    async def opened(server):
        reply = await server.client.options("/v1/models", headers=asked)
        assert reply.status_code == 200, "browsers ask without a key"
        assert reply.headers["access-control-allow-origin"] == "https://a.example"
        asked_by_other = asked | {"Origin": "https://b.example"}
        reply = await server.client.options("/v1/models", headers=asked_by_other)
        assert "access-control-allow-origin" not in reply.headers

    served(closed, keys=KEYS)
    cors = CorsSettings(origins=("https://a.example",))
    served(opened, keys=KEYS, settings=ServerSettings(cors=cors))


def test_a_key_may_be_given_as_its_digest():
    keys = KeyTable([KeyHolder(Tenant(name="a"), ("sha256:" + digest_of("secret").hex(),))])

    assert keys.tenant("secret").name == "a"
    assert keys.tenant("sha256:" + digest_of("secret").hex()) is None


@pytest.mark.parametrize("key", ["", "a b", "clé", "a\n", "sha256:12", "sha256:" + "g" * 64])
def test_a_key_that_could_not_be_sent_is_refused_without_being_repeated(key):
    with pytest.raises(ConfigError) as refused:
        KeyTable([KeyHolder(Tenant(name="a"), (key,))])

    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    ("holders", "admins", "message"),
    [
        ([("a", "k"), ("b", "k")], [], "tenants 'a' and 'b' have the same key"),
        ([("a", "k")], ["k"], "an administrator's too"),
    ],
)
def test_a_key_is_one_holder_s_alone(holders, admins, message):
    rows = [KeyHolder(Tenant(name=name), (key,)) for name, key in holders]

    with pytest.raises(ConfigError, match=message):
        KeyTable(rows, admins)


def test_keys_without_a_name_are_tenants_of_their_own():
    first, second, _ = holders_of_flags(
        ["one", "two", "three"], {}, Tenant(name="like", namespace=SHARED)
    )

    assert first.tenant.name == "key-" + digest_of("one").hex()[:8]
    assert first.tenant != second.tenant
    assert first.tenant.namespace == SHARED


def test_without_keys_everybody_is_somebody():
    assert KeyTable([]).tenant(None) is KeyTable([]).tenants[0] is ANYBODY
    assert KeyTable([]).admin("anything") is None
