package e2e

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// unpacked returns the files of a report, without their directory.
func unpacked(t *testing.T, archive string) map[string]string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Base(h.Name)] = string(content)
	}
}

// One archive has everything that a bug report needs, with a daemon and without, and only its user can read it.
func TestBugReport(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join()
	b.join()
	a.ping(b)
	config := filepath.Join(a.dir, "some.yaml")
	if err := os.WriteFile(config, []byte("devices: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	report := func(file string, args ...string) map[string]string {
		out, err := a.ipoibd(append([]string{"bugreport", "--control", a.daemon.control, "-o", file}, args...)...).Output()
		if err != nil || string(out) != file+"\n" {
			t.Fatalf("%q, %v", out, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		return unpacked(t, file)
	}
	files := report(filepath.Join(a.dir, "one.tar.gz"), "--config", config)
	if err := json.Unmarshal([]byte(files["status.json"]), &map[string]any{}); err != nil {
		t.Errorf("status.json: %v\n%s", err, files["status.json"])
	}
	for file, want := range map[string]string{"version.txt": "ipoibd", "peers.txt": "ago", "links.txt": ifName, "sockets.txt": ":4791", "config.yaml": "devices"} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s does not contain %q:\n%s", file, want, files[file])
		}
	}
	if out, err := a.ipoibd("bugreport", "-o", filepath.Join(a.dir, "one.tar.gz")).CombinedOutput(); err == nil || !strings.Contains(string(out), "file exists") {
		t.Errorf("an existing file was replaced: %s, %v", out, err)
	}
	a.daemon.stop()
	files = report(filepath.Join(a.dir, "two.tar.gz"))
	if !strings.Contains(files["status.json"], "no daemon") || !strings.Contains(files["links.txt"], ifName) {
		t.Errorf("without a daemon:\n%s\n%s", files["status.json"], files["links.txt"])
	}
}
