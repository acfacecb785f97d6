"""Files that pages of any origin may load: the scripts for other people's pages. They contain no data."""

from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

PUBLIC_FILE_HEADERS = {
    "access-control-allow-origin": "*",  # browsers load modules of another origin only with this permission
    "cross-origin-resource-policy": "cross-origin",
    "cache-control": "public, no-cache",  # cached, but checked: the files of a module must be of one version
}


class PublicFiles(StaticFiles):
    """Static files with the permission for every origin."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(PUBLIC_FILE_HEADERS)
        return response
