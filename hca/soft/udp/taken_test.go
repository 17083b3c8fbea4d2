package udp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const udpTable = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  470: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 33421 2 0000000000000000 0
  536: 0100007F:0143 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 17 2 0000000000000000 0
`

const udp6Table = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  470: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 33422 2 0000000000000000 0
`

func TestPortInodes(t *testing.T) {
	for _, tt := range []struct {
		name, table string
		want        []string
	}{
		{"IPv4", udpTable, []string{"33421"}},
		{"IPv6", udp6Table, []string{"33422"}},
		{"none", strings.ReplaceAll(udpTable, "12B7", "12B8"), nil},
		{"remote port", "1: 00000000:0001 00000000:12B7 07 0:0 0:0 0 0 0 5", nil},
		{"short line", "470: 00000000:12B7 00000000:0000 07", nil},
		{"empty", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := portInodes(tt.table, Port); !slices.Equal(got, tt.want) {
				t.Errorf("inodes %v, want %v", got, tt.want)
			}
		})
	}
}

func FuzzPortInodes(f *testing.F) {
	f.Add(udpTable)
	f.Add(udp6Table)
	f.Fuzz(func(t *testing.T, table string) {
		for _, inode := range portInodes(table, Port) {
			if inode == "" || !strings.Contains(table, inode) {
				t.Errorf("inode %q is not in the table", inode)
			}
		}
	})
}

// portHolders finds the processes in a fake /proc.
func TestPortHolders(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	process := func(pid int, name, fd string) {
		write(fmt.Sprintf("%d/comm", pid), name+"\n")
		dir := filepath.Join(proc, fmt.Sprint(pid), "fd")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(fd, filepath.Join(dir, "3"))); err != nil {
			t.Fatal(err)
		}
	}
	write("thread-self/net/udp", udpTable)
	write("thread-self/net/udp6", udp6Table)
	process(12, "someone", "socket:[17]")
	process(34, "a server", "socket:[33421]")
	process(56, "another", "socket:[33422]")
	want := []string{"a server (pid 34)", "another (pid 56)"}
	if got := portHolders(proc); !slices.Equal(got, want) {
		t.Errorf("holders %q, want %q", got, want)
	}
	if e := takenBy(proc); !slices.Equal(e.Holders, want) {
		t.Errorf("error %v, want the holders %q", e, want)
	}
	process(90, "this process", "socket:[33421]")
	if err := os.Symlink("90", filepath.Join(proc, "self")); err != nil {
		t.Fatal(err)
	}
	if got := portHolders(proc); !slices.Equal(got, want) {
		t.Errorf("holders %q with this process, want %q", got, want)
	}
	for _, pid := range []string{"34", "56"} {
		if err := os.RemoveAll(filepath.Join(proc, pid)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := portHolders(proc), []string{"this process (pid 90)"}; !slices.Equal(got, want) {
		t.Errorf("holders %q without others, want %q", got, want)
	}
	write("thread-self/net/udp", "")
	write("thread-self/net/udp6", strings.ReplaceAll(udp6Table, "12B7", "12B8"))
	if got := portHolders(proc); got != nil {
		t.Errorf("holders %q of a free port", got)
	}
}

func TestPortTakenError(t *testing.T) {
	for _, tt := range []struct {
		err  PortTakenError
		want string
	}{
		{PortTakenError{Port: Port, Holders: []string{"x (pid 1)", "y (pid 2)"}, Kernel: "rdma_rxe"}, "UDP port 4791: port taken by x (pid 1), y (pid 2); stop it, or run in another network namespace"},
		{PortTakenError{Port: Port, Kernel: "rdma_rxe"}, "UDP port 4791: port taken by the kernel module rdma_rxe; remove the module, or run in another network namespace"},
		{PortTakenError{Port: Port}, "UDP port 4791: port taken by a process that cannot be seen from here, or the kernel; stop it, or run in another network namespace"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		if !errors.Is(&tt.err, ErrPortTaken) {
			t.Error("does not wrap ErrPortTaken")
		}
	}
}
