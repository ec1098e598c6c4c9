#!/bin/sh
# Builds the site: copies the pages to build/pages with links that hold there, adds the reference, runs MkDocs. A link that leads nowhere is an error.
set -e
cd "$(dirname "$0")/.."
py=.venv/bin/python
rm -rf build/pages && mkdir -p build/pages
cp -R docs/. build/pages/
$py tools/reference.py build/pages/reference >build/reference.log
$py tools/site_pages.py build/pages
NO_MKDOCS_2_WARNING=1 $py -m mkdocs -q build --strict
echo "the documentation is in build/site/index.html"
