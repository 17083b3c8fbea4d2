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
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// prefix and the architecture are around the version in the name of a package with a
// signed generic kernel: linux-image-6.1.0-50-amd64, linux-image-6.12.9+deb12-amd64.
const prefix = "linux-image-"

// version matches the part between them in the names of packages with a kernel; the
// names of meta packages have only two numbers.
var version = regexp.MustCompile(`^\d+\.\d+\.\d+(-\d+)?(\+deb\d+)?$`)

// errNone means that apt offers no kernel of a series.
var errNone = errors.New("apt offers no kernel of this series (are its package lists downloaded?)")

// download puts the newest kernel that apt offers into the cache, unless it is
// there already, and returns its folder.
func download(ctx context.Context, b Build, root string, progress io.Writer) (string, error) {
	options, err := aptOptions(root, b.Arch)
	if err != nil {
		return "", err
	}
	dir, err := tryDownload(ctx, b, root, options, progress)
	if err == nil || ctx.Err() != nil {
		return dir, err
	}
	fmt.Fprintf(progress, "kernel %s: updating the package lists\n", b)
	if _, renewErr := command(ctx, "", "apt-get", append(options, "-qq", "update")...); renewErr != nil {
		return "", errors.Join(err, renewErr)
	}
	return tryDownload(ctx, b, root, options, progress)
}

func tryDownload(ctx context.Context, b Build, root string, options []string, progress io.Writer) (string, error) {
	pkg, err := choose(ctx, b, options)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, pkg.folder()+"_"+wantedHash(b.Arch))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work, err := workDir(root)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(progress, "kernel %s: downloading %s\n", b, pkg)
	if err := fetch(ctx, pkg, options, work); err != nil {
		return "", err
	}
	fmt.Fprintf(progress, "kernel %s: unpacking\n", b)
	if err := unpack(ctx, work, b.Arch); err != nil {
		return "", err
	}
	return dir, publish(filepath.Join(work, "kernel"), dir, inCache(root, b))
}

// debian is a package in one version.
type debian struct{ name, version string }

func (p debian) String() string { return p.name + "=" + p.version }

// folder returns the name of its folder in the cache, without the hash of what it contains.
func (p debian) folder() string { return p.name + "_" + p.version }

// aptOptions returns the options by which apt gets packages for an architecture. Those for another machine have package
// lists of their own, in the cache, so that neither this machine's lists nor its architectures change.
func aptOptions(root string, arch Arch) ([]string, error) {
	if arch == Arch(runtime.GOARCH) {
		return nil, nil
	}
	dir := filepath.Join(root, "apt-"+string(arch))
	lists, cache := filepath.Join(dir, "lists"), filepath.Join(dir, "cache")
	for _, folder := range []string{lists, cache} {
		if err := os.MkdirAll(filepath.Join(folder, "partial"), 0o755); err != nil {
			return nil, err
		}
	}
	return []string{
		"-oAPT::Architecture=" + string(arch), "-oAPT::Architectures=" + string(arch),
		"-oDir::State::lists=" + lists, "-oDir::Cache=" + cache, "-oDir::State::status=/dev/null",
	}, nil
}

// choose finds the newest kernel of a build that apt offers.
func choose(ctx context.Context, b Build, options []string) (debian, error) {
	out, err := command(ctx, "", "apt-cache", append(options, "--names-only", "search", "^"+prefix)...)
	if err != nil {
		return debian{}, err
	}
	name, ok := newestOf(b, out)
	if !ok {
		return debian{}, errNone
	}
	out, err = command(ctx, "", "apt-cache", append(options, "--no-all-versions", "show", name)...)
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
func newestOf(b Build, search string) (string, bool) {
	flavour := "-" + string(b.Arch)
	var best string
	for line := range strings.Lines(search) {
		name, _, _ := strings.Cut(line, " ")
		v := strings.TrimSuffix(strings.TrimPrefix(name, prefix), flavour)
		if len(v) != len(name)-len(prefix)-len(flavour) ||
			!version.MatchString(v) || !strings.HasPrefix(v, string(b.Series)+".") {
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
func fetch(ctx context.Context, pkg debian, options []string, dir string) error {
	if _, err := command(ctx, dir, "apt-get", append(options, "-qq", "download", pkg.String())...); err != nil {
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
