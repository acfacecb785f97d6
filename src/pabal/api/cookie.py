"""What a browser keeps for us: out of reach of scripts and other sites, and of plain HTTP where the hub has HTTPS."""

from starlette.responses import Response

from pabal.wiring import Hub


def set_secure_cookie(hub: Hub, response: Response, name: str, value: str, *, max_age: int, path: str) -> None:
    secure = (hub.settings.public_url or "").startswith("https://")
    response.set_cookie(name, value, max_age=max_age, path=path, httponly=True, secure=secure, samesite="lax")
