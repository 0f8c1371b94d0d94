"""Hooks of MkDocs: what pages need to read the same on GitHub and on the site, and how search ranks them."""

import logging
import os
import posixpath
import re
from urllib.parse import urlsplit, urlunsplit

from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

log = logging.getLogger("mkdocs.hooks.weir")

# On GitHub a list or a table may follow a line of text. Python-Markdown requires an empty line before it, and nests a list
# only by four spaces. separate_lists adds the empty line before a list. Lists and tables that are still text are reported.
ITEM = re.compile(r"([-*+]|1\.) \S")
UNPARSED = re.compile(r"^\s*([-*+]|1\.) \S|^\s*\|", re.MULTILINE)

page_uri = ""  # of the current page; pages are rendered one by one


class LinksToRepository(Treeprocessor):
    """Turns relative links that lead out of docs/ into links to the repository. A link to a file that does not exist
    stays as it is, and MkDocs reports it."""

    def __init__(self, md, config):
        super().__init__(md)
        self.root = os.path.dirname(os.path.abspath(config.config_file_path))
        self.docs = posixpath.basename(config.docs_dir)
        self.repository = config.extra["repository"]

    def run(self, root):
        for element in root.iter():
            for attribute in ("href", "src"):
                url = element.get(attribute)
                if url:
                    element.set(attribute, self.link(url))

    def link(self, url):
        parts = urlsplit(url)
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return url
        path = posixpath.normpath(posixpath.join(self.docs, posixpath.dirname(page_uri), parts.path))
        in_repository = os.path.join(self.root, path)
        if path.startswith("../") or not os.path.exists(in_repository):
            return url
        is_folder = os.path.isdir(in_repository)
        if path.startswith(self.docs + "/") and not is_folder and not path.endswith(".go"):
            return url
        kind = "tree" if is_folder else "blob"
        return urlunsplit(("", "", f"{self.repository}/{kind}/main/{path}", parts.query, parts.fragment))


class RepositoryExtension(Extension):
    def __init__(self, config):
        super().__init__()
        self.config_of_site = config

    def extendMarkdown(self, md):
        # After inline patterns (20), before MkDocs checks relative links (0).
        md.treeprocessors.register(LinksToRepository(md, self.config_of_site), "links_to_repository", 3)


def on_config(config):
    config.markdown_extensions.append(RepositoryExtension(config))
    return config


def on_page_markdown(markdown, page, **_):
    global page_uri
    page_uri = page.file.src_uri
    if page_uri.startswith("adr/"):
        page.meta["search"] = {"boost": 0.2}  # search ranks decisions last
    return separate_lists(markdown)


def separate_lists(markdown):
    lines, in_code, in_list, before = [], False, False, ""
    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            if "mermaid" in line:
                log.warning("%s: a mermaid drawing needs a script of another host: draw an SVG in docs/img", page_uri)
            in_code = not in_code
        elif not in_code and ITEM.match(line):
            if before.strip() and not in_list and not before.startswith("#"):
                lines.append("")
            in_list = True
        elif not line.strip():
            in_list = False
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"


def on_page_content(html, page, **_):
    for tag, content in re.findall(r"<(p|li)>(.*?)</\1>", html, re.DOTALL):
        text = re.sub(r"<(code|a)\b.*?</\1>", "x", content, flags=re.DOTALL)
        unparsed = UNPARSED.search(text)
        if unparsed:
            line = text[unparsed.start() :].strip().splitlines()[0]
            log.warning("%s: an empty line or four spaces are missing before: %s", page.file.src_uri, line[:80])
    return html
