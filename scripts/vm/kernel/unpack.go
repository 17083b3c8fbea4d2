package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// unpack creates work/kernel, a folder for the cache, from work/kernel.deb.
func unpack(ctx context.Context, work string, arch Arch) error {
	tree := filepath.Join(work, "tree")
	if _, err := command(ctx, work, "dpkg-deb", "--extract", "kernel.deb", tree); err != nil {
		return err
	}
	release, err := only(filepath.Join(tree, "lib", "modules", "*"))
	if err != nil {
		return err
	}
	into := filepath.Join(work, "kernel")
	for _, folder := range []string{modulesDir, infiniBandDir} {
		if err := os.MkdirAll(filepath.Join(into, folder), 0o755); err != nil {
			return err
		}
	}
	if err := extractModules(ctx, tree, filepath.Base(release), into, arch); err != nil {
		return err
	}
	image, err := only(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil {
		return err
	}
	vmlinux := filepath.Join(into, "vmlinux")
	if arch == ARM64 { // an Image, which is not compressed
		return os.Rename(image, vmlinux)
	}
	return extractVmlinux(ctx, image, vmlinux)
}

// only returns the only path that matches.
func only(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("the package has %q, want exactly one %s", found, filepath.Base(pattern))
	}
	return found[0], nil
}

func extractVmlinux(ctx context.Context, image, into string) error {
	data, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	payload, err := payload(data)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(image), err)
	}
	return decompress(ctx, payload, into)
}

// Offsets in the header of a bzImage (Documentation/arch/x86/boot.rst).
const (
	offSetupSects    = 0x1f1 // 1 byte: sectors of setup code, 0 means 4
	offMagic         = 0x202 // "HdrS"
	offPayloadOffset = 0x248 // 4 bytes, from the end of the setup code
	offPayloadLength = 0x24c // 4 bytes
	headerLen        = 0x250
	sector           = 512
	sizeLen          = 4 // the uncompressed size at the payload's end
)

// errNoImage means that a file is not a bzImage.
var errNoImage = errors.New("not a bzImage")

// payload returns the compressed kernel within a bzImage.
func payload(image []byte) ([]byte, error) {
	if len(image) < headerLen || string(image[offMagic:offMagic+4]) != "HdrS" {
		return nil, errNoImage
	}
	sectors := int(image[offSetupSects])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*sector + int(binary.LittleEndian.Uint32(image[offPayloadOffset:]))
	end := start + int(binary.LittleEndian.Uint32(image[offPayloadLength:])) - sizeLen
	if end <= start || end > len(image) {
		return nil, errNoImage
	}
	return image[start:end], nil
}

// formats are the compressions that Debian uses, by their first bytes.
var formats = []struct {
	magic, program string
}{
	{"\xfd7zXZ\x00", "xz"},
	{"\x28\xb5\x2f\xfd", "zstd"},
	{"\x7fELF", "cat"}, // none
}

// decompress writes the decompressed data to a file.
func decompress(ctx context.Context, data []byte, into string) error {
	for _, f := range formats {
		if bytes.HasPrefix(data, []byte(f.magic)) {
			return pipe(ctx, data, into, f.program)
		}
	}
	return fmt.Errorf("%s: unknown compression % x", filepath.Base(into), data[:min(8, len(data))])
}

// pipe runs a decompression program on data and writes its output to a file.
func pipe(ctx context.Context, data []byte, into, program string) error {
	f, err := os.Create(into)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	if program != "cat" {
		cmd.Args = append(cmd.Args, "-dc")
	}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(data), f
	if err := cmd.Run(); err != nil {
		_ = f.Close()
		return fmt.Errorf("%s for %s: %w", program, filepath.Base(into), err)
	}
	return f.Close()
}
