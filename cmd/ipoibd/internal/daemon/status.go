package daemon

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
)

// statusLimit bounds how long an interface may take to tell its state.
const statusLimit = 5 * time.Second

// status is called by the control socket's goroutines.
func (d *daemon) status() control.Status {
	s := control.Status{
		Version:    d.opts.Version,
		PID:        os.Getpid(),
		Started:    d.started,
		Goroutines: runtime.NumGoroutine(),
		FDs:        openFDs(),
		HeapBytes:  heapBytes(),
		Devices:    []control.Device{},
		Interfaces: d.interfaces(),
	}
	for _, dev := range d.devices {
		s.Devices = append(s.Devices, dev.status())
	}
	return s
}

// interfaces asks all interfaces at the same time, so that one that is busy
// holds up no other's answer.
func (d *daemon) interfaces() []control.Interface {
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	out := make([]control.Interface, len(d.ifaces))
	var asked sync.WaitGroup
	for i, f := range d.ifaces {
		asked.Go(func() {
			var err error
			if out[i], err = f.Status(ctx); err != nil {
				out[i] = control.NewInterface(f.Name(), f.DeviceName())
				out[i].State, out[i].Reason = control.StateBusy, fmt.Sprintf("no answer within %s", statusLimit)
			}
		})
	}
	asked.Wait()
	return out
}

func (d *managed) status() control.Device {
	view, info := d.View(), d.slot.Info()
	s := control.Device{
		Name: d.name, HCA: info.HCA, Kind: info.Kind, Underlay: info.Underlay, Reset: string(info.Reset),
		Opens: d.Opens(), Ports: []hca.PortAttr{}, Notice: info.Notice,
		Peers: info.Peers, KnownPeersOnly: info.KnownPeersOnly, Counters: append([]hca.Counter{}, info.Counters...),
	}
	s.Recovery, s.Coordinator = recoveryOf(d.Status())
	if view.Session == nil {
		s.State, s.Notice = view.Err.Error(), ""
		return s
	}
	s.State, s.Attr = control.StateOpen, view.Session.Attr()
	s.Counters = append(view.Session.Counters(), s.Counters...)
	s.Ports = append(s.Ports, view.Ports...)
	return s
}

func recoveryOf(s device.Status) (*control.Recovery, *control.Coordinator) {
	recovery := control.NewRecovery(s.State, s.Rung, s.Reason, s.Counts, s.History, time.Now())
	recovery.NextTry, recovery.GivesUp = s.NextTry, s.GivesUp
	if !s.Coordinator.Shared {
		return recovery, nil
	}
	c := &control.Coordinator{
		Phase: s.Coordinator.Intent.Phase.String(), Leading: s.Coordinator.State.Leads(),
		Members: append([]string{}, s.Sharers...), Silent: s.Coordinator.Leader.Since,
	}
	if s.Coordinator.Leader != (resetlock.Process{}) {
		c.Leader = s.Coordinator.Leader.String()
	}
	if s.Coordinator.Err != nil {
		c.Trouble = s.Coordinator.Err.Error()
	}
	return recovery, c
}

func openFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries) - 1 // the folder itself was open
}

func heapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
