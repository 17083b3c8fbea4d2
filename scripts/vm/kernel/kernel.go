package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Series names kernels that differ in stable fixes only: "6.1", "6.12".
type Series string

// AllSeries are those that the driver is tested on: Debian 12's own, and the
// newer one that its security archive has.
var AllSeries = []Series{"6.1", "6.12"}

// ErrMissing is wrapped by errors that say what this machine lacks: there can be
// no guests here.
var ErrMissing = errors.New("virtual machines cannot be had here")

// Kernel is one in the cache.
type Kernel struct {
	Series  Series
	Vmlinux string   // path of the ELF file
	Modules []string // paths of the modules, each after those that it needs
}

// Get returns the kernel of a series, after downloading it where the cache has
// none of the newest version, which takes a line on progress and a minute or so.
func Get(ctx context.Context, series Series, progress io.Writer) (Kernel, error) {
	root, err := cacheDir()
	if err != nil {
		return Kernel{}, err
	}
	unlock, err := lock(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	dir, err := newest(ctx, series, root, progress)
	if err != nil {
		return Kernel{}, err
	}
	return open(series, dir)
}

// newest is the folder of the newest kernel that can be had.
func newest(ctx context.Context, series Series, root string, progress io.Writer) (string, error) {
	dir, err := download(ctx, series, root, progress)
	if err == nil {
		return dir, nil
	}
	cached := inCache(root, series)
	if len(cached) == 0 {
		return "", fmt.Errorf("%w: kernel %s: %w", ErrMissing, series, err)
	}
	fmt.Fprintf(progress, "kernel %s: %v; %s is in the cache\n", series, err, filepath.Base(cached[0]))
	return cached[0], nil
}

// open reads a folder of the cache.
func open(series Series, dir string) (Kernel, error) {
	k := Kernel{Series: series, Vmlinux: filepath.Join(dir, "vmlinux")}
	entries, err := os.ReadDir(filepath.Join(dir, "modules"))
	if err != nil {
		return Kernel{}, fmt.Errorf("read the kernel in the cache: %w", err)
	}
	for _, e := range entries { // sorted, as their names begin with numbers
		k.Modules = append(k.Modules, filepath.Join(dir, "modules", e.Name()))
	}
	return k, nil
}

// Release is the version as uname has it, from the folder's name.
func (k Kernel) Release() string {
	name, _, _ := strings.Cut(filepath.Base(filepath.Dir(k.Vmlinux)), "_")
	return strings.TrimPrefix(name, prefix)
}

// inCache lists the folders of a series, that made last first.
func inCache(root string, series Series) []string {
	dirs, _ := filepath.Glob(filepath.Join(root, prefix+string(series)+".*_*"))
	slices.SortFunc(dirs, func(a, b string) int { return modified(b).Compare(modified(a)) })
	return dirs
}
