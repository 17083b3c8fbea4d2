package endpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// attached are the groups to which a queue pair is attached.
type attached struct {
	qp   hca.QP
	list []hca.MulticastGroup
}

// keep detaches the queue pair from the groups that are not wanted, and continues after a
// failure. It can be repeated for the groups that were busy.
func (a *attached) keep(wanted []hca.MulticastGroup) error {
	var errs []error
	a.list = slices.DeleteFunc(a.list, func(m hca.MulticastGroup) bool {
		if slices.Contains(wanted, m) {
			return false
		}
		err := a.qp.DetachMulticast(m)
		errs = append(errs, err)
		return !errors.Is(err, hca.ErrBusy)
	})
	return errors.Join(errs...)
}

// leave detaches the queue pair from a group under any MLID: it cannot have a group at two.
func (a *attached) leave(mgid hca.GID) error {
	return a.keep(slices.DeleteFunc(slices.Clone(a.list), func(m hca.MulticastGroup) bool { return m.MGID == mgid }))
}

// Regroup adapts the queue pair, which is in use, to another plan for which it can be kept
// ([port.Plan.SameExceptGroups]): it gets the Q_Key of the plan and is attached to its groups, and to no
// others. After an error the caller closes the endpoint.
func (e *Endpoint) Regroup(p port.Plan) error {
	was := e.Spec.Plan
	e.Spec.Plan = p
	if p.SelfAH() != was.SelfAH() { // the former one is closed with the session: a probe may use it
		if err := e.createSelf(); err != nil {
			return err
		}
	}
	if key := p.Broadcast().QKey; key != was.Broadcast().QKey {
		if err := e.QP.Modify(hca.QPAttr{State: hca.QPRTS, QKey: key}, hca.AttrState|hca.AttrQKey); err != nil {
			return fmt.Errorf("change the Q_Key of the queue pair: %w", err)
		}
	}
	return e.attachGroups()
}

// attachGroups attaches the queue pair to the plan's groups, detaches it from all others,
// and creates the missing address handles. The handle of a group that is no longer in the plan
// is not closed here, because posted requests may use it: the peer table returns it, to
// [AHWorkers.Destroy].
//
// Guests choose groups, and a device may refuse one, for example because it has no room. Unless
// the device has failed, the endpoint does without any group but the broadcast group.
func (e *Endpoint) attachGroups() error {
	p := e.Spec.Plan
	var wanted []hca.MulticastGroup
	refused := 0
	for _, g := range p.Groups {
		wanted = append(wanted, p.Membership(g))
		err := e.attachGroup(g)
		switch {
		case err == nil:
		case g == p.Broadcast() || qprecovery.OfVerbError(qprecovery.VerbAttachMcast, err).OfDevice():
			return err
		default:
			refused++
			if e.Spec.OnRefused != nil {
				e.Spec.OnRefused(err)
			}
		}
	}
	e.Refused.Store(int32(refused))
	maps.DeleteFunc(e.groupAHs, func(g port.Group, _ hca.AH) bool { return !slices.Contains(p.Groups, g) })
	return e.attached.keep(wanted)
}

// attachGroup attaches the queue pair to a group of the plan, and creates the group's address
// handle, unless that has been done. Without a subnet manager several groups may have the same
// Attach, to which the queue pair attaches only once.
func (e *Endpoint) attachGroup(g port.Group) error {
	if e.groupAHs[g] == nil {
		ah, err := e.AHs.create(e.Spec.Plan.GroupAH(g))
		if err != nil {
			return fmt.Errorf("create address handle of group %s: %w", g.MGID, err)
		}
		e.groupAHs[g] = ah
	}
	m := e.Spec.Plan.Membership(g)
	if slices.Contains(e.attached.list, m) {
		return nil
	}
	if err := e.attached.leave(m.MGID); err != nil {
		return fmt.Errorf("detach from group %s at its former MLID: %w", g.MGID, err)
	}
	if err := e.QP.AttachMulticast(m); err != nil {
		return fmt.Errorf("attach to group %s: %w", g.MGID, err)
	}
	e.attached.list = append(e.attached.list, m)
	return nil
}

// Groups returns the destinations of messages to the groups that have an address handle, by MGID.
func (e *Endpoint) Groups() map[hca.GID]hca.UDDest {
	dests := make(map[hca.GID]hca.UDDest, len(e.groupAHs))
	for g, ah := range e.groupAHs {
		dests[g.MGID] = hca.UDDest{AH: ah, QPN: hca.QPNMulticast, QKey: g.QKey}
	}
	return dests
}
