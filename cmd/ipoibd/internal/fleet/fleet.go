package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

// Options are what devices and interfaces need besides their configuration.
type Options struct {
	AllowFaults bool // faults may be injected
	Remove      bool // delete the interfaces at the stop
	// OpenRDMA opens an RDMA device of the kernel by its name. It returns hca.ErrNoDevice if the device does not exist
	// or this program cannot open RDMA devices.
	OpenRDMA func(name string) (hca.Device, error)
	Programs *bpf.Programs // for the interfaces with eBPF; nil: there are none
	FastPath *bpf.FastPath // for the devices that use it
	Journal  *journal.Journal
	Log      *slog.Logger
	// Lost is called once every interface of the configuration has failed, with the reasons. It does not block.
	Lost func(error)
}

// Fleet is the set of devices and interfaces. One goroutine at a time changes the lists: it replaces them as a
// whole, so that a reader's copies of them are consistent. Any goroutine may read.
type Fleet struct {
	Resting atomic.Bool // the operator has suspended the devices
	opts    Options
	running context.Context // ends when the daemon is to stop
	noBPF   sync.Once       // logs that eBPF is not available
	leaving leaving         // of interfaces and devices that are no longer in the set

	mu      sync.Mutex // guards what follows, and failure and runtime of interfaces
	devices []*Device
	ifaces  []*Interface
	asleep  bool // the devices are suspended, and new ones begin so
}

// New returns an empty fleet. running ends when it is to stop: no change then waits any longer.
func New(running context.Context, opts Options) *Fleet {
	return &Fleet{opts: opts, running: running}
}

// lists returns the devices and interfaces, in the order of the configuration.
func (f *Fleet) lists() ([]*Device, []*Interface) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.devices, f.ifaces
}

// Device returns the device of a name, or nil.
func (f *Fleet) Device(name string) *Device {
	devices, _ := f.lists()
	if i := slices.IndexFunc(devices, func(d *Device) bool { return d.name == name }); i >= 0 {
		return devices[i]
	}
	return nil
}

// Interface returns the interface of a name, or nil.
func (f *Fleet) Interface(name string) *Interface {
	_, ifaces := f.lists()
	if i := slices.IndexFunc(ifaces, func(m *Interface) bool { return m.Name() == name }); i >= 0 {
		return ifaces[i]
	}
	return nil
}

// Works returns the configuration that the lists were made from without the interfaces that have failed, so that a
// change makes those again.
func (f *Fleet) Works(cfg *config.Config) *config.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := map[string]bool{}
	for _, m := range f.ifaces {
		failed[m.Name()] = m.failure != nil
	}
	c := *cfg
	c.Interfaces = slices.DeleteFunc(slices.Clone(cfg.Interfaces), func(i config.Interface) bool { return failed[i.Name] })
	return &c
}

// Report returns what devices and interfaces have published.
func (f *Fleet) Report(now time.Time) (devices []report.Device, ifaces []report.Interface) {
	devices, ifaces = []report.Device{}, []report.Interface{}
	ds, ms := f.lists()
	for _, d := range ds {
		devices = append(devices, d.Report(now))
	}
	for _, m := range ms {
		ifaces = append(ifaces, f.status(m, now))
	}
	return devices, ifaces
}

// Answers returns nil once the goroutine that owns each device and interface has answered, or the
// first that has not when ctx ends. An interface that has failed counts as alive: its end was
// reported, and the others work.
func (f *Fleet) Answers(ctx context.Context) error {
	devices, ifaces := f.lists()
	for _, d := range devices {
		if err := d.Answers(ctx); err != nil {
			return fmt.Errorf("device %s: %w", d.name, err)
		}
	}
	for _, m := range ifaces {
		if err := m.iface.Answers(ctx); err != nil {
			return fmt.Errorf("interface %s: %w", m.Name(), err)
		}
	}
	return nil
}

// maxSummary bounds how many interfaces a summary names, because systemctl shows it in one line.
const maxSummary = 8

// Summary describes the interfaces in one line: "ib0 up; ib1 waiting (device), no carrier".
func (f *Fleet) Summary() string {
	var all []string
	_, ifaces := f.lists()
	for _, m := range ifaces[:min(len(ifaces), maxSummary)] {
		all = append(all, m.iface.Summary())
	}
	if more := len(ifaces) - maxSummary; more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, "; ")
}

// Stop stops interfaces and then devices, and closes the interfaces. It deletes those that are not to stay, unless
// another process continues everything.
func (f *Fleet) Stop(given bool) (err error) {
	devices, ifaces := f.lists()
	for _, m := range ifaces {
		m.run.stop()
	}
	for _, m := range ifaces {
		<-m.run.ended
	}
	for _, d := range devices {
		d.run.stop()
	}
	for _, d := range devices {
		<-d.run.ended
	}
	f.leaving.Wait()
	for _, m := range ifaces {
		if m.failure == nil { // else it is closed already
			err = errors.Join(err, m.release(given || f.keeps(m)))
		}
	}
	return err
}
