package backend

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// Each backend is complete, and found by the name of an HCA. A disk may be behind any HCA but
// the software HCA.
func TestBackends(t *testing.T) {
	seen := map[config.Kind]bool{}
	for _, b := range backends {
		if seen[b.kind] || b.open == nil || b.list == nil || b.names == nil {
			t.Errorf("the backend of kind %q is not complete, or there are two", b.kind)
		}
		seen[b.kind] = true
	}
	for name, storage := range map[string]bool{config.SoftHCA: false, "mlx5_0": true} {
		if find(name).kind != config.KindOf(name) || find(name).storage != storage {
			t.Errorf("%s: %+v, want the kind %q, storage %t", name, find(name), config.KindOf(name), storage)
		}
	}
	if got := Names(); !slices.Contains(got, config.SoftHCA) {
		t.Errorf("names %q, without %s", got, config.SoftHCA)
	}
}

// A name that is of no kind is refused.
func TestNoBackend(t *testing.T) {
	for _, name := range []string{"", "a/b"} {
		if _, err := New(t.Context(), config.Device{HCA: name}, Options{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("New of %q: %v, want ErrInvalid", name, err)
		}
		if find(name).storage {
			t.Errorf("%q carries storage", name)
		}
	}
}

// A daemon that has only software HCAs does not warn that its memory cannot be locked.
func TestUnlockedLevel(t *testing.T) {
	software, hardware := config.Device{HCA: config.SoftHCA}, config.Device{HCA: "mlx5_0"}
	for _, c := range []struct {
		devices []config.Device
		want    slog.Level
	}{{[]config.Device{software}, slog.LevelDebug}, {[]config.Device{software, hardware}, slog.LevelWarn}} {
		if got := UnlockedLevel(c.devices); got != c.want {
			t.Errorf("%+v: %s, want %s", c.devices, got, c.want)
		}
	}
}

// While another process has the UDP port, the software HCA is busy: Probe returns the GUID,
// Open says who has the port. Once the port is free, Open succeeds.
func TestSoftHCAIsBusyWhileItsPortIsTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, args := range []string{
		"link add " + nstest.Dev + " type veth peer name peer0", "link set peer0 up",
		"addr add 192.0.2.1/24 dev " + nstest.Dev, "link set " + nstest.Dev + " up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	other, err := udp.Open(udp.Config{Netdev: nstest.Dev})
	must(t, err)
	s, err := New(t.Context(), config.Device{Name: "soft", HCA: config.SoftHCA, Soft: config.Soft{Underlay: nstest.Dev}}, Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	if guid, err := s.Probe(1); !errors.Is(err, ErrBusy) || guid == (hca.GUID{}) {
		t.Errorf("Probe: %v, %v, want a GUID and ErrBusy", guid, err)
	}
	_, err = s.Open(context.Background())
	if !errors.Is(err, ErrBusy) || !errors.Is(err, udp.ErrPortTaken) || !strings.Contains(err.Error(), ": UDP port 4791: port taken by ") {
		t.Errorf("Open: %v, want ErrBusy, and who has the port", err)
	}
	must(t, other.Close())
	dev, err := s.Open(context.Background())
	must(t, err)
	must(t, errors.Join(dev.Close(), s.Close()))
}
