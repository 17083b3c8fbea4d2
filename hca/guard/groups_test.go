package guard_test

import (
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/soft/memfabric"
)

// A backend does not close a QP that is attached to a group. In the failed state the guard
// detaches the QP before it closes it, so that the backend can be closed as well and the
// device can be opened again.
func TestR18FailedQPLeavesItsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1)
		defer f.Close()
		for _, fail := range []bool{true, false} {
			inner, _ := openSoft(t, f, "a", addrA) // panics while the previous device is open
			dev := guard.Wrap(inner, guard.Options{})
			pd := have(dev.AllocPD())(t)
			cq := have(dev.CreateCQ(hca.CQSpec{Entries: rigDepth}))(t)
			qp := have(pd.CreateQP(rigSpec, cq, cq))(t)
			mgid := hca.GIDFromAddr(group)
			if err := qp.AttachMulticast(hca.MulticastGroup{MGID: mgid}); err != nil {
				t.Fatal(err)
			}
			if fail {
				dev.Fail(errBoom)
			}
			if err := qp.DetachMulticast(hca.MulticastGroup{MGID: mgid}); err != nil {
				t.Errorf("failed %v: detach: %v", fail, err)
			}
			for _, c := range []closer{qp, cq, pd, dev} {
				if err := c.Close(); err != nil {
					t.Errorf("failed %v: close %T: %v", fail, c, err)
				}
			}
		}
	})
}
