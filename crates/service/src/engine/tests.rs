use crate::caller::Caller;
use crate::lines::{DefragRequest, NewDeviceLine};
use crate::testing::{TestEngine, World};
use crate::tiers::Tiers;

#[test]
fn what_an_engine_lacks_is_refused_by_its_name_and_says_which_engine_has_it() {
    let world = World::new(false);
    let engine = TestEngine { has_no_space_control: true, ..TestEngine::default() };
    let mut store = world.unmounted();
    store.engine = &engine;
    let (own, tiers) = (Caller::own(), Tiers::of(&store));
    let device = NewDeviceLine { path: b"/dev/x".to_vec(), is_slow: false, size_bytes: None, force: false };
    let request = DefragRequest { rewrite: false, bytes_per_second: 0, dry_run: false };
    let refusals = [
        ("devices and tiers", tiers.devices(&own).err()),
        ("devices and tiers", tiers.add_device(&own, &device).err()),
        ("devices and tiers", tiers.heat(&own, 9).err()),
        ("devices and tiers", tiers.placement(&own, None).err()),
        ("way to grow", store.grow(&own, None).err()),
        ("defragmentation", store.defrag_plan(&own, false).err()),
        ("defragmentation", store.defragment(&own, request).err()),
        ("zones", store.zones(&own).err()),
        ("charges of memory", store.charges(&own).err()),
    ];
    for (what, error) in refusals {
        let words = error.expect(what).to_string();
        assert!(
            words.contains(&format!("is kept by test, which has no {what}")) && words.contains("kvdb"),
            "{words}"
        );
    }
    assert!(store.check(&own).is_ok() && store.health().failure.is_none());
}
