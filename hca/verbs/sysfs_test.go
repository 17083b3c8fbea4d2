package verbs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"ipoibd/hca"
)

// tree makes files with a text each.
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

// It is the name of now that counts.
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
		if got := verbsOf(dir, name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestOpenSysfsOfNothing(t *testing.T) {
	if _, err := openSysfs("no-such-device"); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("%v", err)
	}
}

func TestPCIAddrOfNothing(t *testing.T) {
	if got := pciAddr("no-such-device"); got != "" {
		t.Errorf("%q", got)
	}
}
