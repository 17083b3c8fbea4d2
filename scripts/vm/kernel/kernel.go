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

// Series names kernels that differ only in stable fixes: "6.1", "6.12".
type Series string

// AllSeries are the kernels that the driver is tested on: Debian 12's own, and the
// newer one in its security archive.
var AllSeries = []Series{"6.1", "6.12"}

// ErrMissing is wrapped by errors that name what this machine lacks to run guests.
var ErrMissing = errors.New("this machine cannot run virtual machines")

// Kernel is a kernel in the cache.
type Kernel struct {
	Series  Series
	Vmlinux string   // path of the ELF file
	Modules []string // paths of the modules, each after the ones it needs
	// InfiniBand are the paths of the modules for an InfiniBand HCA under rdmavt and for the kernel's IPoIB,
	// which need Modules, in the same order.
	InfiniBand []string
}

// Get returns the newest kernel of a series. If the cache lacks it, Get downloads
// it, which takes about a minute and prints a line on progress.
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

// newest returns the folder of the newest available kernel.
func newest(ctx context.Context, series Series, root string, progress io.Writer) (string, error) {
	dir, err := download(ctx, series, root, progress)
	if err == nil {
		return dir, nil
	}
	cached := inCache(root, series)
	if len(cached) == 0 {
		return "", fmt.Errorf("%w: kernel %s: %w", ErrMissing, series, err)
	}
	fmt.Fprintf(progress, "kernel %s: %v; using %s from the cache\n", series, err, filepath.Base(cached[0]))
	return cached[0], nil
}

// open reads a folder of the cache.
func open(series Series, dir string) (Kernel, error) {
	k := Kernel{Series: series, Vmlinux: filepath.Join(dir, "vmlinux")}
	for folder, list := range map[string]*[]string{modulesDir: &k.Modules, infiniBandDir: &k.InfiniBand} {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			return Kernel{}, fmt.Errorf("read the kernel in the cache: %w", err)
		}
		for _, e := range entries { // sorted, because the names begin with numbers
			*list = append(*list, filepath.Join(dir, folder, e.Name()))
		}
	}
	return k, nil
}

// Release returns the version that uname prints, from the folder's name.
func (k Kernel) Release() string {
	name, _, _ := strings.Cut(k.folder(), "_")
	return strings.TrimPrefix(name, prefix)
}

// packageVersion returns the version of the kernel's package, from the folder's name.
func (k Kernel) packageVersion() string {
	_, rest, _ := strings.Cut(k.folder(), "_")
	version, _, _ := strings.Cut(rest, "_")
	return version
}

// folder returns the name of the kernel's folder in the cache.
func (k Kernel) folder() string { return filepath.Base(filepath.Dir(k.Vmlinux)) }

// inCache lists the folders with kernels of a series, newest first.
func inCache(root string, series Series) []string { return inFolder(root, prefix, series) }

// inFolder lists the folders of a series with a prefix, newest first.
func inFolder(root, prefix string, series Series) []string {
	dirs, _ := filepath.Glob(filepath.Join(root, prefix+string(series)+".*_*"))
	slices.SortFunc(dirs, func(a, b string) int { return modified(b).Compare(modified(a)) })
	return dirs
}
