#!/usr/bin/env python3
"""Fetch the newest peers of `make compare` as wheels.  usage: compare_peers.py DIRECTORY PEER ...

Each package is unpacked once, into DIRECTORY/NAME; nothing is installed, no code of it is run.
pip downloads when it is there, with its own settings (index, certificate, links); otherwise
urllib reads the index that PIP_INDEX_URL or pypi.org names.  Prints the peers that are there, one
line; what cannot be had is told on stderr, one line each.
"""
import hashlib
import html.parser
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile

PEERS = {  # peer: packages and versions
    'ompi5': {'openmpi': '5.0.11'},
    'mpich5': {'mpich': '5.0.2'},
    'impi': {'impi-rt': '2021.19.0', 'impi-devel': '2021.19.0'},
    'oneccl': {'oneccl-cpu': '2022.2.0', 'oneccl-cpu-devel': '2022.2.0',
               'intel-cmplr-lib-rt': '2026.2.0', 'impi-rt': '2021.19.0'},
}
UNUSED = re.compile(r'\.a$|/icx-lto\.so$|/libsvml\.so$|/tune_fast/|/bin/IMB-')


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.urls = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == 'a':
            self.urls += [v for k, v in attrs if k == 'href']


def fits(url, name, version):
    """Is this the wheel of that version for this machine?"""
    file = os.path.basename(urllib.parse.urlparse(url).path)
    stem = '%s-%s-' % (name.replace('-', '_'), version)
    return file.startswith(stem) and file.endswith(platform.machine() + '.whl')


def fetch_by_urllib(name, version, folder):
    context = ssl.create_default_context(cafile=os.environ.get('PIP_CERT') or None)
    index = os.environ.get('PIP_INDEX_URL', 'https://pypi.org/simple').rstrip('/')
    page = '%s/%s/' % (index, name)
    with urllib.request.urlopen(page, timeout=30, context=context) as r:
        urls = [u for u in Links(r.read().decode()).urls if fits(u, name, version)]
    if not urls:
        raise OSError('no wheel for this machine')
    url = urllib.parse.urljoin(page, urls[0])
    with urllib.request.urlopen(url, timeout=120, context=context) as r:
        data = r.read()
    digest = re.search('sha256=([0-9a-f]{64})', url)
    if digest and hashlib.sha256(data).hexdigest() != digest.group(1):
        raise OSError('the wheel is damaged')
    with open(os.path.join(folder, 'it.whl'), 'wb') as f:
        f.write(data)


def fetch_by_pip(name, version, folder):
    command = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--only-binary', ':all:',
               '--retries', '1', '-d', folder, '%s==%s' % (name, version)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        errors = [s for s in done.stderr.splitlines() if s.startswith('ERROR')]
        raise OSError((errors or ['pip failed'])[-1].replace('ERROR: ', ''))


def unpack(wheel, target):
    """The data of a wheel (bin, lib, include, ...), without its Python parts."""
    with zipfile.ZipFile(wheel) as z:
        for entry in z.infolist():
            parts = entry.filename.split('/')
            if entry.is_dir() or len(parts) < 3 or not parts[0].endswith('.data') or '..' in parts:
                continue
            if parts[1] != 'data' or UNUSED.search(entry.filename):
                continue
            path = os.path.join(target, *parts[2:])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with z.open(entry) as source, open(path, 'wb') as out:
                shutil.copyfileobj(source, out)
            os.chmod(path, entry.external_attr >> 16 & 0o777 | 0o600)


def get(root, name, version):
    target = os.path.join(root, name)
    stamp = os.path.join(target, 'version')
    if os.path.exists(stamp) and open(stamp).read() == version:
        return
    print('compare_peers: fetching %s %s' % (name, version), file=sys.stderr)
    has_pip = subprocess.run([sys.executable, '-m', 'pip', '--version'],
                             capture_output=True).returncode == 0
    with tempfile.TemporaryDirectory(dir=root) as folder:
        (fetch_by_pip if has_pip else fetch_by_urllib)(name, version, folder)
        wheel = [f for f in os.listdir(folder) if f.endswith('.whl')][0]
        unpack(os.path.join(folder, wheel), os.path.join(folder, 'files'))
        with open(os.path.join(folder, 'files', 'version'), 'w') as f:
            f.write(version)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(os.path.join(folder, 'files'), target)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root, wanted = sys.argv[1], sys.argv[2:]
    os.makedirs(root, exist_ok=True)
    there = []
    for peer in wanted:
        try:
            for name, version in PEERS[peer].items():
                get(root, name, version)
            there.append(peer)
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, IndexError) as e:
            why = ' '.join(str(e).split())[:160]
            print('compare_peers: %s is left out: %s: %s' % (peer, name, why), file=sys.stderr)
    print(' '.join(there))


if __name__ == '__main__':
    main()
