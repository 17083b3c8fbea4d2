package holders

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// processes finds the processes in a fake /proc.
func TestProcesses(t *testing.T) {
	proc := t.TempDir()
	process := func(pid int, name, fd string) {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "fd"), 0o755),
			os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o644), os.Symlink(fd, filepath.Join(dir, "fd", "3")))
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, inodes []uint64, want ...Process) {
		t.Helper()
		if got := processes(proc, inodes); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	inodes := []uint64{33421, 33422}
	process(12, "someone", "socket:[17]")
	process(34, "a server", "socket:[33421]")
	process(56, "another", "socket:[33422]")
	check("two sockets", inodes, Process{34, "a server"}, Process{56, "another"})
	check("one socket", inodes[1:], Process{56, "another"})
	process(90, "this process", "socket:[33421]")
	if err := os.Symlink("90", filepath.Join(proc, "self")); err != nil {
		t.Fatal(err)
	}
	check("with this process", inodes, Process{34, "a server"}, Process{56, "another"})
	for _, pid := range []string{"34", "56"} {
		if err := os.RemoveAll(filepath.Join(proc, pid)); err != nil {
			t.Fatal(err)
		}
	}
	check("without others", inodes, Process{90, "this process"})
	check("other sockets", []uint64{18, 3342})
	check("no socket", nil)
}
