package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNewestOf(t *testing.T) {
	const search = `linux-image-6.1.0-9-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.1.0-50-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.1.0-50-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-60-rt-amd64 - Linux 6.1 for 64-bit PCs, PREEMPT_RT (signed)
linux-image-6.1.0-70-amd64-unsigned - Linux 6.1 for 64-bit PCs
linux-image-6.1.0-71-arm64 - Linux 6.1 for 64-bit ARMv8 machines (signed)
linux-image-6.1.0-8-amd64-dbg - Debug symbols
linux-image-6.12-amd64 - Linux for 64-bit PCs (meta-package)
linux-image-6.12.9+deb12-amd64 - Linux 6.12 for 64-bit PCs (signed)
linux-image-6.12.117+deb12-amd64 - Linux 6.12 for 64-bit PCs (signed)
linux-image-6.12.118+deb12-cloud-amd64 - Linux 6.12 for x86-64 cloud (signed)
linux-image-amd64 - Linux for 64-bit PCs (meta-package)
linux-image-
`
	for b, want := range map[Build]string{
		{"6.1", AMD64}:  "linux-image-6.1.0-50-amd64",
		{"6.12", AMD64}: "linux-image-6.12.117+deb12-amd64",
		{"6.1", ARM64}:  "linux-image-6.1.0-71-arm64",
	} {
		if got, ok := newestOf(b, search); !ok || got != want {
			t.Errorf("%s: %s, %v, want %s", b, got, ok, want)
		}
	}
	if got, ok := newestOf(Build{"5.10", AMD64}, search); ok {
		t.Errorf("kernel of 5.10: %s, want none", got)
	}
}

// bzImage is an image with a payload behind one sector of setup code.
func bzImage(payload string) []byte {
	const setup, offset = 1, 0x100
	image := make([]byte, (setup+1)*sector+offset)
	image[offSetupSects] = setup
	copy(image[offMagic:], "HdrS")
	binary.LittleEndian.PutUint32(image[offPayloadOffset:], offset)
	binary.LittleEndian.PutUint32(image[offPayloadLength:], uint32(len(payload)+sizeLen))
	return append(append(image, payload...), "size and more"...)
}

func TestPayload(t *testing.T) {
	image := bzImage("the kernel")
	if got, err := payload(image); err != nil || string(got) != "the kernel" {
		t.Errorf("payload %q, %v, want the kernel", got, err)
	}
	long := bytes.Clone(image)
	binary.LittleEndian.PutUint32(long[offPayloadLength:], 1<<20)
	huge := bytes.Clone(image)
	binary.LittleEndian.PutUint32(huge[offPayloadOffset:], 1<<32-1)
	for name, image := range map[string][]byte{
		"empty": nil, "cut": image[:headerLen-1], "without its end": image[:len(image)-20],
		"no magic": make([]byte, 4096), "payload too long": long, "payload too far": huge,
	} {
		if _, err := payload(image); !errors.Is(err, errNoImage) {
			t.Errorf("%s: %v, want %v", name, err, errNoImage)
		}
	}
}

func TestDecompress(t *testing.T) {
	const xz = "\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4F\x02\x00!\x01\x16\x00\x00\x00t/\xe5\xa3\x01\x00\x04hello" +
		"\x00\x00\x00\x00\xb17\xb9\xdb\xe5\xda\x1e\x9b\x00\x01\x1d\x05\xb8-\x80\xaf\x1f\xb6\xf3}\x01\x00\x00\x00\x00\x04YZ"
	into := filepath.Join(t.TempDir(), "out")
	for data, want := range map[string]string{xz: "hello", "\x7fELFplain": "\x7fELFplain"} {
		if err := decompress(t.Context(), []byte(data), into); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(into); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	for _, bad := range []string{"", "BZh9", xz[:30]} {
		if err := decompress(t.Context(), []byte(bad), into); err == nil {
			t.Errorf("decompress %q: no error, want one", bad)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	// As depmod writes it: what is needed last comes first in the list of needs.
	modules := parseDeps(`kernel/d/a-b.ko.xz:
kernel/d/c.ko.xz: kernel/d/a-b.ko.xz
kernel/d/d.ko.xz: kernel/d/c.ko.xz kernel/d/a-b.ko.xz
`)
	builtin := parseBuiltin("kernel/d/e.ko\n")
	got, err := loadOrder([]string{"c", "e", "d"}, modules, builtin)
	if want := []string{"kernel/d/a-b.ko.xz", "kernel/d/c.ko.xz", "kernel/d/d.ko.xz"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if got, err := loadOrder([]string{"c", "f"}, modules, builtin); err == nil {
		t.Errorf("a missing module: %q, want an error", got)
	}
	if got := modules["a_b"].path; got != "kernel/d/a-b.ko.xz" {
		t.Errorf("path of module a_b: %q, want that of a-b.ko.xz", got)
	}
}
