package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// prefix and flavour are around the version in the name of a package with a
// signed generic kernel: linux-image-6.1.0-50-amd64, linux-image-6.12.9+deb12-amd64.
const (
	prefix  = "linux-image-"
	flavour = "-amd64"
)

// version matches the part between them in the names of packages with a kernel; the
// names of meta packages have only two numbers.
var version = regexp.MustCompile(`^\d+\.\d+\.\d+(-\d+)?(\+deb\d+)?$`)

// errNone means that apt offers no kernel of a series.
var errNone = errors.New("apt offers no kernel of this series (are its package lists downloaded?)")

// download puts the newest kernel that apt offers into the cache, unless it is
// there already, and returns its folder.
func download(ctx context.Context, series Series, root string, progress io.Writer) (string, error) {
	dir, err := tryDownload(ctx, series, root, progress)
	if err == nil || ctx.Err() != nil {
		return dir, err
	}
	fmt.Fprintf(progress, "kernel %s: updating the package lists\n", series)
	if _, renewErr := command(ctx, "", "apt-get", "-qq", "update"); renewErr != nil {
		return "", errors.Join(err, renewErr)
	}
	return tryDownload(ctx, series, root, progress)
}

func tryDownload(ctx context.Context, series Series, root string, progress io.Writer) (string, error) {
	pkg, err := choose(ctx, series)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, pkg.folder())
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work, err := workDir(root)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(progress, "kernel %s: downloading %s\n", series, pkg)
	if err := fetch(ctx, pkg, work); err != nil {
		return "", err
	}
	fmt.Fprintf(progress, "kernel %s: unpacking\n", series)
	if err := unpack(ctx, work); err != nil {
		return "", err
	}
	return dir, publish(filepath.Join(work, "kernel"), dir, inCache(root, series))
}

// debian is a package in one version.
type debian struct{ name, version string }

func (p debian) String() string { return p.name + "=" + p.version }

// folder returns the name of its folder in the cache.
func (p debian) folder() string { return p.name + "_" + p.version + "_" + wantedHash() }

// choose finds the newest kernel of a series that apt offers.
func choose(ctx context.Context, series Series) (debian, error) {
	out, err := command(ctx, "", "apt-cache", "--names-only", "search", "^"+prefix)
	if err != nil {
		return debian{}, err
	}
	name, ok := newestOf(series, out)
	if !ok {
		return debian{}, errNone
	}
	out, err = command(ctx, "", "apt-cache", "--no-all-versions", "show", name)
	if err != nil {
		return debian{}, err
	}
	for line := range strings.Lines(out) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return debian{name, strings.TrimSpace(v)}, nil
		}
	}
	return debian{}, fmt.Errorf("apt lists no version of %s", name)
}

// newestOf picks a package from lines of "name - description".
func newestOf(series Series, search string) (string, bool) {
	var best string
	for line := range strings.Lines(search) {
		name, _, _ := strings.Cut(line, " ")
		v := strings.TrimSuffix(strings.TrimPrefix(name, prefix), flavour)
		if len(v) != len(name)-len(prefix)-len(flavour) ||
			!version.MatchString(v) || !strings.HasPrefix(v, string(series)+".") {
			continue
		}
		if best == "" || slices.Compare(numbers(v), numbers(best)) > 0 {
			best = v
		}
	}
	return prefix + best + flavour, best != ""
}

// numbers returns the numbers in a version, by which versions are ordered.
func numbers(version string) (list []int) {
	for _, digits := range regexp.MustCompile(`\d+`).FindAllString(version, -1) {
		n, _ := strconv.Atoi(digits)
		list = append(list, n)
	}
	return list
}

// fetch downloads a package into dir, as kernel.deb.
func fetch(ctx context.Context, pkg debian, dir string) error {
	if _, err := command(ctx, dir, "apt-get", "-qq", "download", pkg.String()); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("apt-get download left %q, want one package", found)
	}
	return os.Rename(found[0], filepath.Join(dir, "kernel.deb"))
}

// command runs a program in dir and returns its standard output; an error includes
// its standard error.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := cmp.Or(strings.TrimSpace(stderr.String()), "no message")
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said)
	}
	return string(out), nil
}
