use super::*;

#[test]
fn write_data_begins_on_a_page() {
    let pool = BufferPool::new(1 << 20, 2);
    let message = pool.take().into_message(WRITE_HEAD_BYTES + (1 << 20));
    let (data, rest) = message.into_data(WRITE_HEAD_BYTES, WRITE_HEAD_BYTES + (1 << 20));
    assert!(rest.is_none());
    assert_eq!(data.len(), 1 << 20);
    assert_eq!(data.as_ptr() as usize % PAGE_BYTES, 0);
}

#[test]
fn large_data_is_handed_over_and_returns_to_the_pool() {
    let pool = BufferPool::new(1 << 16, 2);
    let mut buffer = pool.take();
    let address = buffer.space().as_ptr() as usize;
    let (data, rest) = buffer.into_message(WRITE_HEAD_BYTES + 60_000).into_data(WRITE_HEAD_BYTES, usize::MAX);
    assert!(rest.is_none());
    assert_eq!(data.as_ptr() as usize, address + WRITE_HEAD_BYTES);
    assert_eq!(pool.free.lock().len(), 0);
    let part = data.slice(100..200);
    drop(data);
    assert_eq!(pool.free.lock().len(), 0);
    drop(part);
    assert_eq!(pool.free.lock().len(), 1);
    assert_eq!(pool.take().space().as_ptr() as usize, address);
}

#[test]
fn small_data_is_copied() {
    let pool = BufferPool::new(1 << 20, 2);
    let mut buffer = pool.take();
    buffer.space()[WRITE_HEAD_BYTES..WRITE_HEAD_BYTES + 5].copy_from_slice(b"hello");
    let (data, rest) =
        buffer.into_message(WRITE_HEAD_BYTES + 5).into_data(WRITE_HEAD_BYTES, WRITE_HEAD_BYTES + 5);
    assert_eq!(&data[..], b"hello");
    assert!(rest.is_some());
}

#[test]
fn the_pool_keeps_a_bounded_number_of_idle_buffers() {
    let pool = BufferPool::new(8192, 1);
    let (one, two) = (pool.take(), pool.take());
    drop((one, two));
    assert_eq!(pool.free.lock().len(), 1);
}
