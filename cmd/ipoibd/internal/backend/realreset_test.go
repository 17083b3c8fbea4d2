package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
	"ipoibd/qprecovery/reset"
)

// A device whose former instance a user has never released is used as soon as it is back, without a
// reset, because the new instance is fresh (R21). Another device that has its name meanwhile is not
// reset, not even if it took the place when the reset was ordered already.
func TestR22ForeignDeviceIsNotReset(t *testing.T) {
	cfg := realConfig()
	cfg.Reset = config.ResetLink
	bubble(t, cfg, func(k *fakeKernel, d *real) {
		close(k.freed)
		user := d.View().Session
		if !user.Acquire("a user that hangs") {
			t.Fatal("the session is over")
		}
		defer user.Release("a user that hangs")
		k.become()
		await(t, d, isGone)
		time.Sleep(2 * cfg.Grace)
		k.become(rxe("rxe0", 1, hca.GUID{7: 1}))
		time.Sleep(time.Second)
		must(t, d.Recover(context.Background()))
		time.Sleep(time.Minute)
		if err := d.slot.hca.Reset(context.Background()); !errors.Is(err, hca.ErrNoDevice) {
			t.Errorf("the reset ended with %v, want that the device is gone", err)
		}
		if k.did() != 0 || d.View().Session != nil {
			t.Fatalf("the other device was reset: %v", k.resets)
		}
		k.become(rxe("rxe7", 2, rxeGUID))
		await(t, d, isOpen)
		if k.did() != 0 {
			t.Errorf("reset: %v, want none", k.resets)
		}
	})
}

// A bridge and its port have the same MAC, so their Soft-RoCE devices have the same
// GUIDs. The sibling is another device even when it takes the name. Renaming the netdev
// does not change the device.
func TestR22SoftRoCESiblingIsAnotherDevice(t *testing.T) {
	bubble(t, realConfig(), func(k *fakeKernel, d *real) {
		renamed := rxe("rxe0", 0, rxeGUID)
		renamed.Parent = "uplink"
		k.become(renamed)
		time.Sleep(time.Second)
		if d.Opens() != 1 || d.View().Session == nil {
			t.Fatalf("renaming the netdev: opened %d times, %v", d.Opens(), d.View().Err)
		}
		sibling := rxe("rxe0", 5, rxeGUID)
		sibling.Parent = "br0"
		k.become(sibling)
		await(t, d, isGone)
		time.Sleep(time.Minute)
		if d.Opens() != 1 {
			t.Fatalf("the sibling on br0 was opened: %v", k.opened)
		}
		again := rxe("rxe3", 6, rxeGUID)
		k.become(sibling, again)
		await(t, d, isOpen)
		if last := k.opened[len(k.opened)-1]; last != "rxe3" {
			t.Errorf("opened %s, want rxe3", last)
		}
	})
}

// A reset that the kernel does not end in time, here one that is forced, is logged with the names
// of the users of the device. It is waited for, and there is at most one.
func TestR16RealResetIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		k.users = []rdma.User{{PID: 1 << 30, Name: "ib_send_bw"}, {Name: "nvme_rdma"}}
		cfg := realConfig()
		cfg.Reset, cfg.Force = config.ResetLink, true
		d, err := k.newReal(cfg)
		must(t, err)
		first := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			first <- d.slot.hca.Reset(ctx)
		}()
		time.Sleep(time.Minute)
		const why = "users of the device: ib_send_bw (pid 1073741824), the kernel's nvme_rdma"
		if text := k.logged(); !strings.Contains(text, why) || len(first) > 0 {
			t.Errorf("returned: %t; the log: %s", len(first) > 0, text)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.slot.hca.Reset(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), why) {
			t.Errorf("a second one: %v", err)
		}
		if n := k.did(); n != 1 {
			t.Errorf("%d resets are under way", n)
		}
		close(k.freed)
		must(t, <-first)
		if must(t, d.slot.hca.Reset(t.Context())); k.did() != 2 {
			t.Errorf("%d resets", k.did())
		}
		cfg.Reset = config.ResetNone
		d, err = k.newReal(cfg)
		must(t, err)
		if must(t, d.slot.hca.Reset(t.Context())); k.did() != 2 {
			t.Error("reset although none is configured")
		}
	})
}

// A reset takes the device from no program that takes no part in the locks: it fails with the
// reason held_by_process and the names of the programs. That includes one that is in another PID
// namespace, and the case that the kernel cannot list them.
func TestR16DeviceOfAnotherProgramIsNotReset(t *testing.T) {
	unlisted := errors.New("invalid argument")
	for _, c := range []struct {
		users  []rdma.User
		unseen error
		want   string // a part of the error
	}{
		{[]rdma.User{{PID: 1 << 30, Name: "ib_send_bw"}}, nil, "ib_send_bw (pid 1073741824)"},
		{[]rdma.User{{}}, nil, "an unknown process"},
		{nil, unlisted, unlisted.Error()},
	} {
		for _, how := range []config.Reset{config.ResetLink, config.ResetDriver, config.ResetPCI} {
			synctest.Test(t, func(t *testing.T) {
				k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
				k.users, k.unseen = c.users, c.unseen
				close(k.freed)
				cfg := realConfig()
				cfg.Reset = how
				d, err := k.newReal(cfg)
				must(t, err)
				ev := resetlock.Done(d.slot.hca.Reset(t.Context()))
				if k.did() != 0 || ev.Outcome != reset.OutcomeHeld || !strings.Contains(ev.Detail, c.want) {
					t.Errorf("%s: %d resets, %s: %q, want %q", how, k.did(), ev.Outcome, ev.Detail, c.want)
				}
			})
		}
	}
}

// A daemon that may not reset the device because of a program that has it open opens the device
// again once the grace period is over, as it is, and names the program.
func TestR16ProgramIsNamedAfterTheGracePeriod(t *testing.T) {
	cfg := realConfig()
	cfg.Reset, cfg.Grace = config.ResetDriver, 5*time.Second
	bubble(t, cfg, func(k *fakeKernel, d *real) {
		k.users = []rdma.User{{PID: 1 << 30, Name: "ib_send_bw"}}
		began := time.Now()
		must(t, d.Reset(context.Background()))
		await(t, d, isGone)
		await(t, d, isOpen)
		if took := time.Since(began); took < cfg.Grace || took > cfg.Grace+time.Second {
			t.Errorf("open again after %v, want the grace period of %v", took, cfg.Grace)
		}
		if text := k.logged(); k.did() != 0 || !strings.Contains(text, "not reset: held_by_process: ib_send_bw (pid 1073741824)") {
			t.Errorf("%d resets; the log: %s", k.did(), text)
		}
	})
}

// While a program keeps the device from being reset, a user in this process does not release it
// either. It is abandoned after the grace period like in a reset, so the device is opened again.
func TestR14UserIsAbandonedAlthoughThereIsNoReset(t *testing.T) {
	cfg := realConfig()
	cfg.Reset, cfg.Grace = config.ResetDriver, 5*time.Second
	bubble(t, cfg, func(k *fakeKernel, d *real) {
		k.users = []rdma.User{{PID: 1 << 30, Name: "ib_send_bw"}}
		user := d.View().Session
		if !user.Acquire("a user that hangs") {
			t.Fatal("the session is over")
		}
		defer user.Release("a user that hangs")
		must(t, d.Reset(context.Background()))
		await(t, d, isGone)
		await(t, d, isOpen)
		if k.did() != 0 {
			t.Errorf("%d resets", k.did())
		}
	})
}

// The kernel's own users do not keep the device from being reset, since the kernel makes them
// release it, nor does a program if the configuration says so. The log names both first.
func TestR16UsersAreNamedBeforeTheReset(t *testing.T) {
	for force, users := range map[bool][]rdma.User{
		false: {{Name: "nvme_rdma"}},
		true:  {{PID: 1 << 30, Name: "ib_send_bw"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
			k.users = users
			close(k.freed)
			cfg := realConfig()
			cfg.Reset, cfg.Force = config.ResetDriver, force
			d, err := k.newReal(cfg)
			must(t, err)
			must(t, d.slot.hca.Reset(t.Context()))
			if want := fmt.Sprintf("means=driver used_by_others=%q", users[0]); !strings.Contains(k.warned, want) {
				t.Errorf("the log before the reset: %s, want %s", k.warned, want)
			}
		})
	}
}

// fakeFunction has netdevs, and others once it was reset.
type fakeFunction struct {
	before, after []string
	fixed         bool // it cannot be reset
	did           string
	err           error             // that Probe, Rebind and Reset return
	resets        func(what string) // called before a reset; nil: nothing
}

func (f *fakeFunction) Bound() bool    { return true }
func (f *fakeFunction) CanReset() bool { return !f.fixed }
func (f *fakeFunction) Close() error   { return nil }

func (f *fakeFunction) Probe() error  { return f.do("probe") }
func (f *fakeFunction) Rebind() error { return f.do("rebind") }
func (f *fakeFunction) Reset() error  { return f.do("reset") }

func (f *fakeFunction) do(what string) error {
	if f.resets != nil && what != "probe" {
		f.resets(what)
	}
	f.before, f.did = f.after, f.did+what
	return f.err
}

func (f *fakeFunction) Netdevs() []string { return f.before }

// The function is reset as configured, but not below a Soft-RoCE device that could not be
// added again. If adding it fails after all, the error says what to do. The function's new netdevs
// get back their configuration.
func TestResetFunction(t *testing.T) {
	soft, hardware := rxe("rxe0", 0, rxeGUID), rxe("mlx5_0", 0, rxeGUID)
	hardware.Parent = ""
	const byHand = "the device is gone until the reset is completed: rdma link add rxe0 type rxe netdev no-such-netdev"
	one, two := []string{"no-such-netdev"}, []string{"eth0", "eth1"}
	for _, c := range []struct {
		name   string
		how    config.Reset
		device rdma.Device
		f      fakeFunction
		did    string
		text   string // of the error
		gone   bool   // the reset is unfinished
	}{
		{"driver of hardware", config.ResetDriver, hardware, fakeFunction{before: two}, "rebind", "<nil>", false},
		{"hardware", config.ResetPCI, hardware, fakeFunction{before: two}, "reset", "<nil>", false},
		{"hardware without reset", config.ResetPCI, hardware, fakeFunction{fixed: true}, "", "cannot be reset alone", false},
		{"driver alone", config.ResetDriver, hardware, fakeFunction{fixed: true}, "rebind", "<nil>", false},
		{"two netdevs", config.ResetDriver, soft, fakeFunction{before: two}, "", "has 2 netdevs", false},
		{"no netdev", config.ResetPCI, soft, fakeFunction{}, "", "has 0 netdevs", false},
		{"no netdev afterwards", config.ResetPCI, soft, fakeFunction{before: one}, "reset", "has 0 netdevs", true},
		{"netdev gone again", config.ResetDriver, soft, fakeFunction{before: one, after: one}, "rebind", byHand, true},
		{"driver does not come back", config.ResetDriver, hardware, fakeFunction{err: fmt.Errorf("bind: %w", rdma.ErrUnbound)}, "rebind", "no driver now", true},
		{"driver does not go", config.ResetDriver, hardware, fakeFunction{err: hca.ErrIO}, "rebind", hca.ErrIO.Error(), false},
	} {
		var restored []string // before the device is added
		netdevs := slices.Sorted(slices.Values(c.f.before))
		if c.did == "" || errors.Is(c.f.err, rdma.ErrUnbound) {
			netdevs = nil // the kernel has not created them again
		}
		k := kernel{
			function: func(string) (function, error) { return &c.f, nil },
			addLink: func(string, string) error {
				if len(restored) == 0 {
					t.Errorf("%s: the device is added before the netdev has its MAC", c.name)
				}
				return hca.ErrNoMemory
			},
			save: func(netdev string) (func() error, error) {
				return func() error { restored = append(restored, netdev); return nil }, nil
			},
		}
		err := k.reset(c.how, c.device, false, slog.New(slog.DiscardHandler))
		if c.f.did != c.did || !strings.Contains(fmt.Sprint(err), c.text) || errors.Is(err, resetlock.ErrUnfinished) != c.gone {
			t.Errorf("%s: did %q, %v; want %q, %q", c.name, c.f.did, err, c.did, c.text)
		}
		if slices.Sort(restored); !slices.Equal(restored, netdevs) {
			t.Errorf("%s: netdevs %q were restored, want %q", c.name, restored, netdevs)
		}
	}
}

// A reset that was cut short and cannot be completed now, since no more files can be opened,
// is left to the next attempt. One whose PCI function is gone is not.
func TestR21CompletionThatFailsIsTriedAgain(t *testing.T) {
	for cause, again := range map[error]bool{syscall.EMFILE: true, hca.ErrNoDevice: false} {
		k := kernel{function: func(string) (function, error) { return nil, cause }}
		err := k.reset(config.ResetDriver, rdma.Device{Name: "mlx5_0", PCIAddr: "0000:03:00.0"}, true, slog.New(slog.DiscardHandler))
		if !errors.Is(err, cause) || errors.Is(err, resetlock.ErrUnfinished) != again {
			t.Errorf("%v", err)
		}
	}
}

// Soft-RoCE is not reset while this process has it open itself, in which a verb may
// hang; hardware is, since that is what helps.
func TestRealResetWaitsForOurselves(t *testing.T) {
	hardware := rxe("rxe0", 0, rxeGUID)
	hardware.Parent = ""
	for _, c := range []struct {
		device rdma.Device
		how    config.Reset
		resets int
	}{{rxe("rxe0", 0, rxeGUID), config.ResetLink, 0}, {hardware, config.ResetPCI, 1}} {
		synctest.Test(t, func(t *testing.T) {
			k := newFakeKernel(t, c.device)
			close(k.freed)
			cfg := realConfig()
			cfg.Reset = c.how
			d, err := k.newReal(cfg)
			must(t, err)
			zombie, err := k.openHCA("rxe0")
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err = d.slot.hca.Reset(ctx)
			if k.did() != c.resets || (err == nil) != (c.resets == 1) {
				t.Errorf("%s: %d resets, %v", c.how, k.did(), err)
			}
			const why = "users of the device: this process, in which a verb hangs, and no other process"
			if err != nil && !strings.HasSuffix(err.Error(), why) {
				t.Errorf("%s: %v", c.how, err)
			}
			must(t, zombie.Close())
			if must(t, d.slot.hca.Reset(t.Context())); k.did() != c.resets+1 {
				t.Errorf("%s: %d resets after the device was closed", c.how, k.did())
			}
		})
	}
}

// When the users of a device cannot be read, this process may still have it open, so
// Soft-RoCE is not reset (R05).
func TestR05RealResetWaitsWhereUsersCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		close(k.freed)
		cfg := realConfig()
		cfg.Reset = config.ResetLink
		d, err := k.newReal(cfg)
		must(t, err)
		k.unseen = syscall.EMFILE
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.slot.hca.Reset(ctx); k.did() != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d resets, %v; want none, and the end of the context", k.did(), err)
		}
		k.unseen = nil
		if must(t, d.slot.hca.Reset(t.Context())); k.did() != 1 {
			t.Errorf("%d resets after the users could be read, want 1", k.did())
		}
	})
}

// The end waits for a reset under way.
func TestRealEndWaitsForReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		cfg := realConfig()
		cfg.Reset = config.ResetLink
		d, err := k.newReal(cfg)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { d.slot.hca.Run(ctx); close(ended) }()
		go func() { _ = d.slot.hca.Reset(ctx) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("ended before the reset did")
		default:
		}
		close(k.freed)
		<-ended
	})
}
