package kernel

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// headersPrefix is before the version in the name of the package with a kernel's headers.
const headersPrefix = "linux-headers-"

// sources is where Debian's headers are installed, and where their Makefiles look for each other.
const sources = "/usr/src/"

// headers returns the folder of a kernel's headers in the cache, and downloads them if it lacks them. The caller holds
// the lock of the cache.
func headers(ctx context.Context, k Kernel, root string, progress io.Writer) (string, error) {
	pkg := debian{headersPrefix + k.Release(), k.packageVersion()}
	dir := filepath.Join(root, pkg.folder())
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	packages, err := headerPackages(ctx, pkg)
	if err != nil {
		return "", err
	}
	work, err := workDir(root)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(progress, "kernel %s: downloading %s\n", k.Build, strings.Join(packages, " "))
	if _, err := command(ctx, work, "apt-get", append([]string{"-qq", "download"}, packages...)...); err != nil {
		return "", err
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(archives) != len(packages) {
		return "", fmt.Errorf("apt-get download left %q, want %d packages", archives, len(packages))
	}
	tree := filepath.Join(work, "tree")
	for _, archive := range archives {
		if _, err := command(ctx, work, "dpkg-deb", "--extract", archive, tree); err != nil {
			return "", err
		}
	}
	if err := relocate(tree, pkg.name, dir); err != nil {
		return "", err
	}
	return dir, publish(tree, dir, inFolder(root, headersPrefix, k.Build))
}

// headerPackages lists the packages that make up a kernel's headers: that of its flavour, and those that it depends on
// among headers and kbuild. The last is shared by the kernels of a series in some releases of Debian.
func headerPackages(ctx context.Context, pkg debian) ([]string, error) {
	out, err := command(ctx, "", "apt-cache", "show", pkg.String())
	if err != nil {
		return nil, err
	}
	packages := append([]string{pkg.String()}, headerDependencies(out)...)
	if len(packages) != 3 {
		return nil, fmt.Errorf("the headers are %q, want three packages", packages)
	}
	return packages, nil
}

// dependency matches such a dependency and its version, if there is an exact one.
var dependency = regexp.MustCompile(`\b(linux-(?:headers|kbuild)-[^ ,(]+)(?: \(= ([^)]+)\))?`)

// headerDependencies returns these dependencies from what apt-cache show prints, as name or name=version.
func headerDependencies(show string) (packages []string) {
	for line := range strings.Lines(show) {
		list, ok := strings.CutPrefix(line, "Depends: ")
		if !ok {
			continue
		}
		for _, m := range dependency.FindAllStringSubmatch(list, -1) {
			if m[2] != "" {
				m[1] += "=" + m[2]
			}
			packages = append(packages, m[1])
		}
		return packages
	}
	return nil
}

// relocate makes the Makefile of unpacked headers refer to the folder that they will have.
func relocate(tree, pkg, dir string) error {
	file := filepath.Join(tree, sources, pkg, "Makefile")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(text), sources, dir+sources)), 0o644)
}
