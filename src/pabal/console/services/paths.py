"""The paths of the service pages."""

from starlette.requests import Request

from pabal.core.errors import NotFound
from pabal.tokens import services

SERVICES_PATH = "/console/services"


def read_service_name(request: Request) -> str:
    """Return the service name of the path, if it is a valid one."""
    name: str = request.path_params["name"]
    if not services.SERVICE_NAME.fullmatch(name):
        raise NotFound(f"No such service: {name[:64]}")
    return name
