//go:build cgo && linux

package verbs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/verbs"
)

// aloneEnv marks a test's child process, which looks for libraries elsewhere.
const aloneEnv = "TEST_IPOIBD_VERBS_ALONE"

// library is the name of the library that the dynamic linker looks for first.
const library = "libibverbs.so.1"

func TestOpenUnknown(t *testing.T) {
	_, err := verbs.Open("no-such-device")
	var named *hca.VerbError
	if !errors.Is(err, hca.ErrNoDevice) || !errors.As(err, &named) || named.Verb != "open_device" {
		t.Errorf("error %v, want ErrNoDevice from open_device", err)
	}
}

// If the library cannot be loaded, the error names the packages to install.
func TestOpenWithoutLibrary(t *testing.T) {
	if os.Getenv(aloneEnv) != "" {
		reportOpen(t)
		return
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, library), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wantInChild(t, dir, "libibverbs1 and ibverbs-providers")
}

// A library that lacks a function is not used at all.
func TestOpenWithOldLibrary(t *testing.T) {
	if os.Getenv(aloneEnv) != "" {
		reportOpen(t)
		return
	}
	dir := t.TempDir()
	if err := os.Symlink(libc(t), filepath.Join(dir, library)); err != nil {
		t.Fatal(err)
	}
	wantInChild(t, dir, "missing symbol ibv_get_device_list")
}

// libc returns the path of a library without any of the functions.
func libc(t *testing.T) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`/\S*/libc\.so\.6`).Find(maps)
	if found == nil {
		t.Fatalf("no libc in\n%s", maps)
	}
	return string(found)
}

func reportOpen(t *testing.T) {
	_, err := verbs.Open("rxe0")
	t.Logf("no device: %v; %v", errors.Is(err, hca.ErrNoDevice), err)
}

// wantInChild runs the calling test in a child process that looks for libraries in dir
// first. Its Open must fail with a text.
func wantInChild(t *testing.T, dir, text string) {
	t.Helper()
	child := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), aloneEnv+"=1", "LD_LIBRARY_PATH="+dir)
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"no device: true", text} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output %q lacks %q", out, want)
		}
	}
}
