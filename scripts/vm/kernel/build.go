package kernel

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// BuildModule compiles a module for a kernel with Debian's headers and returns its path. Source has its files, with a
// Kbuild file. The result is cached, so a second call needs neither headers nor compiler. Errors that wrap [ErrMissing]
// say what this machine lacks.
func BuildModule(ctx context.Context, k Kernel, name string, source fs.FS, progress io.Writer) (string, error) {
	root, err := cacheDir()
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	hash, err := sourceHash(source)
	if err != nil {
		return "", err
	}
	prefix := name + "_" + k.Release() + "_"
	built := filepath.Join(root, prefix+k.packageVersion()+"_"+hash+".ko")
	if _, err := os.Stat(built); err == nil {
		return built, nil
	}
	dir, err := headers(ctx, k, root, progress)
	if err != nil {
		return "", fmt.Errorf("%w: headers of kernel %s: %w", ErrMissing, k.Build, err)
	}
	fmt.Fprintf(progress, "kernel %s: compiling %s\n", k.Build, name)
	work, err := workDir(root)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	file, err := compileModule(ctx, filepath.Join(dir, sources, headersPrefix+k.Release()), work, name, source)
	if err != nil {
		return "", err
	}
	older, _ := filepath.Glob(filepath.Join(root, prefix+"*.ko"))
	return built, publish(file, built, older)
}

// compileModule compiles a module in a folder. The headers lack what the module's type information (BTF) is made from,
// so it has none.
func compileModule(ctx context.Context, headers, work, name string, source fs.FS) (string, error) {
	src := filepath.Join(work, "module")
	if err := os.CopyFS(src, source); err != nil {
		return "", err
	}
	if _, err := command(ctx, src, "make", "--silent", "--directory="+headers, "M="+src, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"); err != nil {
		return "", err
	}
	file := filepath.Join(src, name+".ko")
	_, err := command(ctx, src, "strip", "--strip-debug", file)
	return file, err
}

// sourceHash distinguishes versions of a source.
func sourceHash(source fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(source, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the source of the module: %w", err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:4]), nil
}
