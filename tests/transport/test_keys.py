"""Key files and `luwu keys`: what is made, what is refused, and that secrets show themselves to
nobody."""

from __future__ import annotations

import copy
import json
import logging
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.base.keys import ALLOWED, SecretKey, parse_key, read_allowed, read_secret
from luwu.commands.main import main
from luwu.join.open import own_security
from luwu.transport.curve import new_key_pair, open_security, public_of
from tests.helpers.key_directories import make_keys

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def luwu(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `luwu keys ...`; its exit code, output and errors."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["keys", *map(str, words)])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


class TestTheVerb:
    def test_init_makes_one_key_each_for_nobody_else(self, luwu: Run, tmp_path: Path) -> None:
        """Goal: modes as promised whatever the umask, names of the processes, secrets that fit."""
        directory = tmp_path / "keys"
        code, out, _ = luwu("init", "--keys", directory, "--workers", 3, "--optimizer-nodes", 2)
        assert code == 0
        assert mode(directory) == 0o700
        assert {mode(path) for path in directory.iterdir()} == {0o600}
        allowed = read_allowed(directory)
        assert {each.name: each.role for each in allowed.values()} == {
            "node": "node", "node-1": "node", "switch": "switch",
            "worker-0": "worker", "worker-1": "worker", "worker-2": "worker",
        }  # fmt: skip
        for public, identity in allowed.items():
            assert public_of(read_secret(directory, identity.name).secret) == public
        secrets = [path.read_text().strip() for path in directory.glob("*.secret")]
        assert len({*secrets}) == 6
        assert not any(secret in out for secret in secrets)

    def test_add_list_revoke(self, luwu: Run, tmp_path: Path) -> None:
        directory = tmp_path / "keys"
        luwu("init", "--keys", directory)
        assert luwu("add", "b-0", "--role", "worker", "--keys", directory)[0] == 0
        code, out, _ = luwu("list", "--keys", directory)
        assert code == 0
        (line,) = [line for line in out.splitlines() if line.startswith("b-0 ")]
        public = public_of(read_secret(directory, "b-0").secret)
        assert line.split()[1:3] == ["worker", public.hex()]
        secrets = [path.read_text().strip() for path in directory.glob("*.secret")]
        assert not any(secret in out for secret in secrets)

        assert luwu("revoke", "b-0", "--keys", directory)[0] == 0

        assert not (directory / "b-0.secret").exists()
        assert "b-0" not in luwu("list", "--keys", directory)[1]
        assert luwu("add", "b-0", "--role", "worker", "--keys", directory)[0] == 0
        assert public_of(read_secret(directory, "b-0").secret) != public, "it was made anew"

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ([], "is not one of init, add, revoke, list"),
            (["delete"], "is not one of init, add, revoke, list"),
            (["init"], "has keys already"),
            (["add"], "missing argument 'NAME'"),
            (["add", "x"], "missing option '--role'"),
            (["add", "x", "--role", "wroker"], "did you mean worker?"),
            (["add", "node", "--role", "node"], "has a key already"),
            (["add", "../x", "--role", "worker"], "is not a valid name of a key"),
            (["add", "x/y", "--role", "worker"], "is not a valid name of a key"),
            (["add", ".x", "--role", "worker"], "is not a valid name of a key"),
            (["revoke"], "missing argument 'NAME'"),
            (["revoke", "nobody"], "has no key 'nobody'; it has "),
            (["list", "x"], "'x' is too much"),
            (["list", "--role", "worker"], "belongs to luwu keys add"),
            (["revoke", "node", "--workers", "2"], "belongs to luwu keys init"),
        ],
    )
    def test_what_is_refused(self, luwu: Run, tmp_path: Path, words: list[str], text: str) -> None:
        """Goal: exit code 2 and what to do; nothing has changed."""
        directory = tmp_path / "keys"
        make_keys(directory)
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        code, _, err = luwu(*words, "--keys", directory)
        assert code == 2
        assert text in err
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


class TestLooseFiles:
    @pytest.mark.parametrize("loose", [0o644, 0o640, 0o604, 0o660, 0o622])
    @pytest.mark.parametrize("name", ["worker-0.secret", ALLOWED])
    def test_a_file_that_others_may_open_is_refused(
        self, tmp_path: Path, name: str, loose: int
    ) -> None:
        directory = make_keys(tmp_path / "keys")
        (directory / name).chmod(loose)
        with pytest.raises(ConfigError, match=f"{name} has mode {loose:04o}"):
            open_security(directory, "worker-0", "worker")

    @pytest.mark.parametrize("loose", [0o755, 0o750, 0o701])
    def test_so_is_their_directory(self, tmp_path: Path, loose: int) -> None:
        directory = make_keys(tmp_path / "keys")
        directory.chmod(loose)
        with pytest.raises(ConfigError, match=f"has mode {loose:04o}"):
            open_security(directory, "worker-0")
        directory.chmod(0o700)

    def test_a_file_of_another_user_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Method: we become another user to the check."""
        directory = make_keys(tmp_path / "keys")
        uid = directory.stat().st_uid
        monkeypatch.setattr("os.geteuid", lambda: uid + 1)
        with pytest.raises(ConfigError, match=f"belongs to user {uid}"):
            read_secret(directory, "worker-0")

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        directory = make_keys(tmp_path / "keys")
        (directory / "x.secret").symlink_to(directory / "node.secret")
        with pytest.raises(ConfigError, match="cannot read the key"):
            read_secret(directory, "x")

    @pytest.mark.parametrize(
        ("rows", "text"),
        [
            ("{", "cannot read"),
            ("[]", "no JSON object"),
            ('{"schema": 2, "keys": []}', "not written by this version"),
            ('{"schema": 1, "keys": {}}', "not written by this version"),
            ('{"schema": 1, "keys": [1]}', "is not a row"),
            ('{"schema": 1, "keys": [{"name": "a", "role": "worker"}]}', "is not a row"),
            ('{"schema": 1, "keys": [{"name": "a", "role": "king", "key": "KEY"}]}', "--role"),
            (
                '{"schema": 1, "keys": [{"name": "../a", "role": "worker", "key": "KEY"}]}',
                "not a valid name",
            ),
            (
                '{"schema": 1, "keys": [{"name": "a", "role": "worker", "key": "zz"}]}',
                "not a public",
            ),
            ('{"schema": 1, "keys": [{"name": 1, "role": "worker", "key": "KEY"}]}', "be texts"),
            (
                '{"schema": 1, "keys": [{"name": "a", "role": "worker", "key": "KEY"},'
                ' {"name": "a", "role": "worker", "key": "KEY"}]}',
                "is listed twice",
            ),
        ],
    )
    def test_a_list_that_says_nothing_clear_is_refused_whole(
        self, tmp_path: Path, rows: str, text: str
    ) -> None:
        directory = make_keys(tmp_path / "keys")
        (directory / ALLOWED).write_text(rows.replace("KEY", "ab" * 32))
        with pytest.raises(ConfigError, match=text):
            read_allowed(directory)

    @pytest.mark.parametrize("content", ["", "x" * 64, "ab" * 31, "ab" * 33])
    def test_a_file_that_holds_no_key_is_refused(self, tmp_path: Path, content: str) -> None:
        directory = make_keys(tmp_path / "keys")
        (directory / "node.secret").write_text(content)
        with pytest.raises(ConfigError, match="contains no key") as caught:
            read_secret(directory, "node")
        assert not content or content not in str(caught.value)


class TestSecrets:
    def test_a_secret_shows_itself_to_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        """Goal: not in any text of it or around it, and it cannot be stored."""

        @dataclass
        class Around:
            secret: SecretKey

        _, secret = new_key_pair()
        raw = secret.reveal()
        around = Around(secret)
        logging.getLogger("x").warning("%s %r %s", secret, around, {"a": [secret]})
        texts = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", repr(around), caplog.text]
        texts += [repr([secret]), str({"a": secret}), repr(OSError(secret)), repr(vars(around))]
        for text in texts:
            assert "redacted" in text
            for shape in (raw.hex(), str(raw), repr(raw)[2:-1]):
                assert shape not in text
        with pytest.raises(TypeError):
            copy.deepcopy(secret)
        with pytest.raises(TypeError):
            asdict(around)
        with pytest.raises(TypeError):
            json.dumps({"secret": secret})

    def test_what_is_wrong_with_a_key_is_said_without_it(self) -> None:
        with pytest.raises(ConfigError, match="63 characters are not a public key") as caught:
            parse_key("a" * 63, "there")
        assert "aaaa" not in str(caught.value)

    def test_whose_key_a_process_uses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Goal: LUWU_KEYS and LUWU_KEY_NAME say it, for workers and for who only reads."""
        directory = make_keys(tmp_path / "keys")
        tcp = "tcp://127.0.0.1:1"
        monkeypatch.delenv("LUWU_KEYS", raising=False)
        monkeypatch.delenv("LUWU_KEY_NAME", raising=False)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        assert own_security(tcp, 0) is None
        monkeypatch.setenv("LUWU_KEYS", str(directory))
        assert own_security("shm:///tmp/x", 0) is None, "nothing there has keys"
        names = [own_security(tcp, 1), own_security(tcp)]
        assert [each.own.name for each in names if each is not None] == ["worker-1", "reader"]
        monkeypatch.setenv("LUWU_KEY_NAME", "worker-{local_rank}")
        monkeypatch.setenv("LOCAL_RANK", "0")
        found = own_security(tcp, 5)
        assert found is not None
        assert found.own.name == "worker-0"
        with pytest.raises(ConfigError, match="is not a valid name of a key"):
            own_security(tcp)  # a reader has no rank to put in
