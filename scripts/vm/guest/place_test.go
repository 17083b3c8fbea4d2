package guest

import (
	"os"
	"path/filepath"
	"testing"
)

// The next run removes a directory that is not locked; one in use stays.
func TestKitDirs(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	killed := filepath.Join(os.TempDir(), kitPrefix+"killed")
	if err := os.MkdirAll(filepath.Join(killed, "6.1"), 0o755); err != nil {
		t.Fatal(err)
	}
	first, release, err := newKitDir()
	if err != nil {
		t.Fatal(err)
	}
	second, releaseSecond, err := newKitDir()
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{killed: false, first: true, second: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want it to exist %v", filepath.Base(dir), err, want)
		}
	}
	release()
	releaseSecond()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("directories after the sweep: %v, %v", left, err)
	}
}
