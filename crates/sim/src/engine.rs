//! Engines that keep their store on a device, and how they are put under test.

use std::sync::Arc;

use kvfs_device::{CrashDevice, CrashMode, Device};
use kvfs_store::{Result, Store};

use crate::store_check::Subject;

/// How to make and open stores of one engine in one configuration.
pub trait Engine {
    /// Most bytes that the store may take on its device.
    fn device_bytes_max(&self) -> u64;

    /// As [`Subject::may_fill_up`].
    fn may_fill_up(&self) -> bool {
        false
    }

    /// Makes an empty store; the device may have to grow for it.
    ///
    /// # Errors
    /// Those of the engine.
    fn create(&self, device: Arc<dyn Device>) -> Result<()>;

    /// Opens the store on `device`, recovering what is needed.
    ///
    /// # Errors
    /// Those of the engine.
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn OpenStore>>;
}

/// An open store. Dropping it is like killing the process.
pub trait OpenStore {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// As [`Subject::flush`].
    ///
    /// # Errors
    /// Those of the engine.
    fn flush(&self) -> Result<()>;

    /// As [`Subject::compact`].
    ///
    /// # Errors
    /// Those of the engine.
    fn compact(&self) -> Result<()>;

    /// Closes cleanly; everything applied survives.
    ///
    /// # Errors
    /// Those of the engine.
    fn close(self: Box<Self>) -> Result<()>;

    /// Verifies the engine's own structures.
    ///
    /// # Errors
    /// What is wrong, for people.
    fn check(&self) -> Result<(), String>;
}

/// An engine's store as a [`Subject`]: on a device that loses power when the run says so.
pub struct DeviceSubject<'a> {
    engine: &'a dyn Engine,
    device: Arc<CrashDevice>,
    open: Option<Box<dyn OpenStore>>,
    crash_seed: u64,
}

impl<'a> DeviceSubject<'a> {
    /// A fresh store. `crash_seed` decides what survives crashes.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn new(engine: &'a dyn Engine, crash_seed: u64) -> Result<Self> {
        let device = Arc::new(CrashDevice::in_memory(0, engine.device_bytes_max()));
        engine.create(Arc::clone(&device) as Arc<dyn Device>)?;
        let open = Some(engine.open(Arc::clone(&device) as Arc<dyn Device>)?);
        Ok(Self { engine, device, open, crash_seed })
    }

    fn open(&self) -> &dyn OpenStore {
        self.open.as_deref().expect("the store is open between the steps of a run")
    }

    fn start(&mut self) -> Result<()> {
        self.open = Some(self.engine.open(Arc::clone(&self.device) as Arc<dyn Device>)?);
        Ok(())
    }
}

impl Subject for DeviceSubject<'_> {
    fn store(&self) -> Arc<dyn Store> {
        self.open().store()
    }

    fn reopen(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            open.close()?;
        }
        self.start()
    }

    fn crash(&mut self) -> Result<()> {
        self.crash_seed = self.crash_seed.wrapping_add(1);
        let image = self.device.crash_image(self.crash_seed, CrashMode::Any);
        let image = image.map_err(|error| kvfs_store::StoreError::io("taking a crash image", error))?;
        self.open = None;
        self.device = Arc::new(CrashDevice::over(Arc::new(image)));
        self.start()
    }

    fn flush(&mut self) -> Result<()> {
        self.open().flush()
    }

    fn compact(&mut self) -> Result<()> {
        self.open().compact()
    }

    fn may_fill_up(&self) -> bool {
        self.engine.may_fill_up()
    }

    fn check(&mut self) -> Result<(), String> {
        self.open().check()
    }
}
