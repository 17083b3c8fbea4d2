package verbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"ipoibd/hca"
)

func TestUnopened(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "uverbs1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for verbs, want := range map[string]error{"uverbs0": fs.ErrNotExist, "uverbs1": errNoProvider, "": hca.ErrNoDevice} {
		if err := unopened(hca.ErrNoDevice, dir, verbs); !errors.Is(err, want) || !errors.Is(err, hca.ErrNoDevice) {
			t.Errorf("%q: %v, want %v", verbs, err, want)
		}
	}
	for _, err := range []error{hca.ErrNoMemory, hca.ErrNoDevice} {
		if got := unopened(err, dir, ""); got != err { //nolint:errorlint // nothing may be added
			t.Errorf("%v, want %v alone", got, err)
		}
	}
}
