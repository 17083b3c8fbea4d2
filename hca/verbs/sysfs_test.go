package verbs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/fstest"

	"ipoibd/hca"
)

// tree returns a file system with files of these texts.
func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func TestPortCounters(t *testing.T) {
	got := portCounters(tree(map[string]string{
		"ports/1/counters/port_rcv_errors": "12\n",
		"ports/1/counters/odd":             "N/A (no PMA)\n",
		"ports/1/counters/empty":           "",
		"ports/1/hw_counters/lifespan":     "10\n",
		"ports/2/hw_counters/rcvd_pkts":    "18446744073709551615\n",
		"ports/2/state":                    "4: ACTIVE\n",
	}))
	want := []hca.Counter{{Name: "port1_port_rcv_errors", Value: 12}, {Name: "port2_rcvd_pkts", Value: 1<<64 - 1}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestReadPKeys(t *testing.T) {
	device := tree(map[string]string{
		"ports/1/pkeys/0": "0xffff\n", "ports/1/pkeys/1": "0x8001\n", "ports/1/pkeys/2": "0x0000\n",
		"ports/2/pkeys/0": "0x10000\n", "ports/3/pkeys/0": "",
	})
	keys, err := readPKeys(device, 1, 3)
	if want := []hca.PKey{0xffff, 0x8001, 0}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("%v, %v, want %v", keys, err, want)
	}
	for port, want := range map[uint8]error{2: hca.ErrInvalid, 3: hca.ErrInvalid, 4: hca.ErrIO} {
		if keys, err := readPKeys(device, port, 1); !errors.Is(err, want) {
			t.Errorf("port %d: %v, %v, want %v", port, keys, err, want)
		}
	}
}

// The current name of the device is used.
func TestVerbsOf(t *testing.T) {
	dir := t.TempDir()
	for verbs, name := range map[string]string{"uverbs0": "mlx5_1\n", "uverbs1": "mlx5_0\n"} {
		if err := os.Mkdir(filepath.Join(dir, verbs), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, verbs, "ibdev"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"mlx5_0": "uverbs1", "mlx5_1": "uverbs0", "mlx5_": "", "": ""} {
		if got, err := verbsOf(dir, name); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", name, got, err, want)
		}
	}
}

// A read that fails because this process lacks descriptors or memory is not reported as an
// error of the device (R05).
func TestR05ExhaustionIsNoErrorOfTheDevice(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "uverbs0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for what, f := range map[string]func() error{
		"P_Keys":          func() error { _, err := readPKeys(root.FS(), 1, 1); return err },
		"verbs interface": func() error { _, err := verbsOf(dir, "mlx5_0"); return err },
		"device":          func() error { return unopened(hca.ErrNoDevice, dir, "uverbs0") },
	} {
		var err error
		withoutDescriptors(t, func() { err = f() })
		if !errors.Is(err, hca.ErrNoMemory) || !errors.Is(err, syscall.EMFILE) || errors.Is(err, hca.ErrIO) || errors.Is(err, hca.ErrNoDevice) {
			t.Errorf("%s: %v, want only hca.ErrNoMemory and EMFILE", what, err)
		}
	}
}

// withoutDescriptors calls f while the process cannot open a descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: 0, Max: was.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	f()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
}

func TestOpenSysfsOfNothing(t *testing.T) {
	if _, err := openSysfs("no-such-device"); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("sysfs of a missing device: %v, want ErrNoDevice", err)
	}
}
