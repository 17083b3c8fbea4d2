package backend

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// Every kind of HCA that a configuration may name has a complete backend, and each backend is
// that of some name. A disk may be behind any but the software HCA.
func TestEveryKindHasABackend(t *testing.T) {
	names := map[config.Kind]string{config.KindSoft: config.SoftHCA, config.KindRDMA: "mlx5_0"}
	for _, b := range backends {
		name, known := names[b.kind]
		delete(names, b.kind)
		if !known || find(name).kind != b.kind || b.open == nil || b.list == nil || b.names == nil {
			t.Errorf("backend %q is not complete, or not the only one of the HCA %q", b.kind, name)
		}
		if got, want := CarriesStorage(config.Device{HCA: name}), name != config.SoftHCA; got != want {
			t.Errorf("%s carries storage: %t, want %t", name, got, want)
		}
	}
	if len(names) > 0 {
		t.Errorf("no backend for %v", names)
	}
	if got := Names(); !slices.Contains(got, config.SoftHCA) {
		t.Errorf("names %q, without %s", got, config.SoftHCA)
	}
}

// A name that is of no kind is refused.
func TestNoBackend(t *testing.T) {
	for _, name := range []string{"", "a/b"} {
		if _, err := New(config.Device{HCA: name}, Options{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("New of %q: %v, want ErrInvalid", name, err)
		}
		if CarriesStorage(config.Device{HCA: name}) {
			t.Errorf("%q carries storage", name)
		}
	}
}

// While another process has the UDP port, the software HCA is busy: Probe succeeds, Open says
// who has the port. Once the port is free, Open succeeds.
func TestSoftHCAIsBusyWhileItsPortIsTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	ns.Do(func() {
		other, err := udp.Open(udp.Config{Netdev: nstest.Dev})
		must(t, err)
		s, err := New(config.Device{Name: "soft", HCA: config.SoftHCA, Soft: config.Soft{Underlay: nstest.Dev}}, Options{Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		if guid, err := s.Probe(1); err != nil || guid == (hca.GUID{}) {
			t.Errorf("Probe: %v, %v, want a GUID", guid, err)
		}
		_, err = s.Open(context.Background())
		if !errors.Is(err, ErrBusy) || !errors.Is(err, udp.ErrPortTaken) || !strings.Contains(err.Error(), ": UDP port 4791: port taken by ") {
			t.Errorf("Open: %v, want ErrBusy, and who has the port", err)
		}
		must(t, other.Close())
		dev, err := s.Open(context.Background())
		must(t, err)
		must(t, errors.Join(dev.Close(), s.Close()))
	})
}
