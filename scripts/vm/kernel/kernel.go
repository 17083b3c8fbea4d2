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

// Arch is an architecture, by its name in Debian, which is also that in Go.
type Arch string

// Architectures of guests.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// Build is a series of kernels for an architecture.
type Build struct {
	Series Series
	Arch   Arch
}

func (b Build) String() string { return fmt.Sprintf("%s for %s", b.Series, b.Arch) }

// AllSeries are the kernels that the driver is tested on: Debian 12's own, and the
// newer one in its security archive.
var AllSeries = []Series{Oldest, Newest}

const (
	Oldest Series = "6.1"
	Newest Series = "6.12"
)

// AllBuilds are the kernels of guests: on arm64 only the newer one, because its guests only run eBPF programs.
var AllBuilds = []Build{{Oldest, AMD64}, {Newest, AMD64}, {Newest, ARM64}}

// ErrMissing is wrapped by errors that name what this machine lacks to run guests.
var ErrMissing = errors.New("this machine cannot run virtual machines")

// Kernel is a kernel in the cache.
type Kernel struct {
	Build
	Vmlinux string   // path of the ELF file, or on arm64 of the Image
	Modules []string // paths of the modules, each after the ones it needs
	// InfiniBand are the paths of the modules for an InfiniBand HCA under rdmavt and for the kernel's IPoIB,
	// which need Modules, in the same order. None for arm64.
	InfiniBand []string
}

// Get returns the newest kernel of a build. If the cache lacks it, Get downloads
// it, which takes about a minute and prints a line on progress.
func Get(ctx context.Context, b Build, progress io.Writer) (Kernel, error) {
	root, err := cacheDir()
	if err != nil {
		return Kernel{}, err
	}
	unlock, err := lock(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	dir, err := newest(ctx, b, root, progress)
	if err != nil {
		return Kernel{}, err
	}
	return open(b, dir)
}

// newest returns the folder of the newest available kernel.
func newest(ctx context.Context, b Build, root string, progress io.Writer) (string, error) {
	dir, err := download(ctx, b, root, progress)
	if err == nil {
		return dir, nil
	}
	cached := inCache(root, b)
	if len(cached) == 0 {
		return "", fmt.Errorf("%w: kernel %s: %w", ErrMissing, b, err)
	}
	fmt.Fprintf(progress, "kernel %s: %v; using %s from the cache\n", b, err, filepath.Base(cached[0]))
	return cached[0], nil
}

// open reads a folder of the cache.
func open(b Build, dir string) (Kernel, error) {
	k := Kernel{Build: b, Vmlinux: filepath.Join(dir, "vmlinux")}
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

// inCache lists the folders with kernels of a build, newest first.
func inCache(root string, b Build) []string { return inFolder(root, prefix, b) }

// inFolder lists the folders of a build with a prefix, newest first.
func inFolder(root, prefix string, b Build) []string {
	dirs, _ := filepath.Glob(filepath.Join(root, fmt.Sprintf("%s%s.*-%s_*", prefix, b.Series, b.Arch)))
	slices.SortFunc(dirs, func(a, b string) int { return modified(b).Compare(modified(a)) })
	return dirs
}
