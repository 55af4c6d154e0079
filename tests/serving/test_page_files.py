"""The page's files as they are served: small, self-contained, and behind keys unless told."""

from __future__ import annotations

import re

from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.routes.page import page_files
from octavo.server.settings import ServerSettings
from octavo.server.tenants import Tenant
from octavo.testing.near_server import served

KEYS = KeyTable([KeyHolder(Tenant(name="alice"), ("key",))])
MOST_BYTES = 300_000
MOST_LINES = 400


def test_the_page_is_small_and_each_of_its_files_short():
    files = page_files()

    assert "index.html" in files
    assert sum(map(len, files.values())) < MOST_BYTES
    assert {name for name, body in files.items() if body.count(b"\n") >= MOST_LINES} == set()


def test_the_page_asks_no_other_place_for_anything():
    for name, body in page_files().items():
        found = re.findall(rb"https?://[^\s\"'`)]+", body)

        assert set(found) <= {b"http://www.w3.org/2000/svg"}, name


def test_every_word_that_the_document_names_is_in_the_table():
    files = page_files()
    table = files["strings.js"].decode()
    names = re.findall(r'data-(?:text|label)="(\w+)"', files["index.html"].decode())

    assert names
    assert [name for name in names if not re.search(rf"^  {name}:", table, re.M)] == []


def test_files_of_an_open_page_need_no_key_and_what_they_show_does():
    async def test(server):
        page = await server.get("/")
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        again = await server.client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert again.status_code == 304
        for name in page_files():
            assert (await server.get(f"/page/{name}")).status_code == 200
        assert (await server.get("/page/other.js")).status_code == 401
        assert (await server.get("/v1/debug/memory/events")).status_code == 401

    served(test, keys=KEYS, settings=ServerSettings(open_page=True))


def test_else_they_are_behind_the_keys_of_all_routes():
    async def test(server):
        for path in ("/", "/page/app.js"):
            assert (await server.get(path)).status_code == 401
            key = {"authorization": "Bearer key"}
            assert (await server.client.get(path, headers=key)).status_code == 200

    served(test, keys=KEYS)


def test_a_server_told_so_has_no_page():
    async def test(server):
        assert (await server.get("/")).status_code == 404
        assert (await server.get("/page/app.js")).status_code == 404

    served(test, settings=ServerSettings(page=False))
