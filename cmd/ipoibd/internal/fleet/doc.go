// Package fleet holds the devices and interfaces of a daemon: it makes them from a configuration, runs them, changes
// them, carries out orders (orders.go), parks them for another process, and stops them in order.
//
// # Change of the configuration
//
// A start is a change from the empty configuration. A change has two halves. The first half, Prepare, makes
// what the plan of [config.MakePlan] adds, which reveals most mistakes. After a mistake, Discard undoes
// what was made, and nothing has changed. The second half, Commit, never rolls back. It ends interfaces, then
// devices; changes devices; starts devices, then interfaces; and changes interfaces. So everything
// has what it needs, and whatever the plan keeps is not touched. What has not ended within ChangeLimit, such as an
// interface whose netlink requests hang, ends in the background, and the result says so.
//
// # Hand-over
//
// Settle waits until no interface and no device is on its way to another state. Park stops interfaces, then devices, so
// that all wait with nothing in flight, and pauses the receiving of HCAs. Export puts what another process needs to
// continue into a capsule; Import and Commit continue there. Then Leave ends this process's share without an effect on
// what the other one continues. If the other process fails, Resume continues here.
package fleet
