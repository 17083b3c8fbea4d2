package udp_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

func TestDefaultNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if _, err := udp.DefaultNetdev(); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("DefaultNetdev of an empty namespace: %v, want hca.ErrNoDevice", err)
	}
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, "one", b, "one", 1500)
	checkDefault(t, a, "one")
	nstest.Veth(t, a, "two", b, "two", 1500)
	a.Do(func() {
		if name, err := udp.DefaultNetdev(); err == nil || !strings.Contains(err.Error(), "one, two") {
			t.Errorf("DefaultNetdev = %q, %v, want both candidates named", name, err)
		}
	})
	addr(t, a, "two", "10.0.0.1/24")
	a.Run("ip", "route", "add", "default", "via", "10.0.0.9")
	checkDefault(t, a, "two")
}

func checkDefault(t *testing.T, ns *nstest.Namespace, want string) {
	t.Helper()
	ns.Do(func() {
		if got, err := udp.DefaultNetdev(); got != want || err != nil {
			t.Errorf("DefaultNetdev = %q, %v, want %q", got, err, want)
		}
	})
}

func TestWaitNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns := nstest.New(t)
	wait := func(ctx context.Context, name string) <-chan error {
		done := make(chan error, 1)
		go func() {
			ns.Do(func() { done <- udp.WaitNetdev(ctx, name) })
		}()
		return done
	}
	if err := <-wait(t.Context(), "lo"); err != nil {
		t.Errorf("WaitNetdev of lo: %v", err)
	}
	late := wait(t.Context(), "eth7")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := <-wait(ctx, "eth8"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitNetdev: %v, want the context's error", err)
	}
	ns.Run("ip", "link", "add", "eth6", "type", "bridge")
	select {
	case err := <-late:
		t.Errorf("WaitNetdev of eth7 returned before its time: %v", err)
	default:
	}
	ns.Run("ip", "link", "add", "eth7", "type", "bridge")
	if err := <-late; err != nil {
		t.Errorf("WaitNetdev of eth7: %v", err)
	}
}
