package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

var errStale = errors.New("patch does not apply")

// snapshot copies the files of the git tree at root to dst: those that git
// tracks and those that it would, as they are now.
func snapshot(ctx context.Context, root, dst string) error {
	list, err := git(ctx, root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for file := range strings.SplitSeq(strings.Trim(list, "\x00"), "\x00") {
		err := copyFile(filepath.Join(root, file), filepath.Join(dst, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // removed, and not yet from git
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}

// apply applies a patch to the tree at dir, or only sees whether it does where
// that is asked for by --check. The patch is named from dir.
func apply(ctx context.Context, dir, patch string, args ...string) error {
	args = append([]string{"apply"}, args...)
	if _, err := git(ctx, dir, append(args, patch)...); err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return nil
}

// git runs git in dir and returns what it prints. It trusts the tree whoever
// owns it, and takes dir for no part of a tree above it.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}
