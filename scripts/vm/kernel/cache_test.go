package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// folder creates a folder of the cache with three modules.
func folder(t *testing.T, root, name string, made time.Time) string {
	t.Helper()
	dir := filepath.Join(root, name)
	for _, module := range []string{"modules/01-b.ko", "modules/00-a.ko", "infiniband/02-c.ko"} {
		file := filepath.Join(dir, module)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(dir, made, made); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Publishing a kernel removes older ones of its build, and keeps others.
func TestPublish(t *testing.T) {
	root := t.TempDir()
	other := folder(t, root, "linux-image-6.12.3+deb12-amd64_6.12.3-1_00", time.Now())
	arm := folder(t, root, "linux-image-6.1.0-1-arm64_6.1.5-1_00", time.Now())
	old := folder(t, root, "linux-image-6.1.0-1-amd64_6.1.5-1_00", time.Now())
	work := folder(t, root, "making", time.Now())
	dir := filepath.Join(root, "linux-image-6.1.0-2-amd64_6.1.6-1_00")
	if err := publish(work, dir, inCache(root, Build{"6.1", AMD64})); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{other: true, arm: true, old: false, work: false, dir: true} {
		if got := !modified(path).IsZero(); got != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(path), got, want)
		}
	}
}

func TestOpen(t *testing.T) {
	root := t.TempDir()
	newer := folder(t, root, "linux-image-6.1.0-2-amd64_6.1.6-1_00", time.Now())
	folder(t, root, "linux-image-6.1.0-1-amd64_6.1.5-1_00", time.Now().Add(-time.Hour))
	folder(t, root, "linux-image-6.12.3+deb12-amd64_6.12.3-1_00", time.Now().Add(time.Hour))
	b := Build{"6.1", AMD64}
	cached := inCache(root, b)
	if len(cached) != 2 || cached[0] != newer {
		t.Fatalf("in the cache: %q", cached)
	}
	k, err := open(b, cached[0])
	if err != nil {
		t.Fatal(err)
	}
	if k.Release() != "6.1.0-2-amd64" || len(k.Modules) != 2 || filepath.Base(k.Modules[0]) != "00-a.ko" {
		t.Errorf("%+v, release %s, want 6.1.0-2-amd64 with modules 00-a.ko and another", k, k.Release())
	}
	if k.packageVersion() != "6.1.6-1" || len(k.InfiniBand) != 1 || filepath.Base(k.InfiniBand[0]) != "02-c.ko" {
		t.Errorf("%+v, version %s, want 6.1.6-1 with the module 02-c.ko for InfiniBand", k, k.packageVersion())
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locking a second time: %v", err)
	}
	unlock()
	unlock, err = lock(t.Context(), path)
	if err != nil {
		t.Fatalf("locking after the first lock was released: %v", err)
	}
	unlock()
}

// workDir removes the leftovers of a killed run.
func TestWorkDir(t *testing.T) {
	root := t.TempDir()
	folder(t, root, "making", time.Now())
	dir, err := workDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("work directory has %v, %v, want nothing", entries, err)
	}
}
